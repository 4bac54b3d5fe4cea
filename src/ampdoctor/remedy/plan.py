"""A treatment: what of a model runs how."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ampdoctor.diagnose.wording import listing, number, place, scale, source_place
from ampdoctor.errors import ConfigError
from ampdoctor.facts.site import Source
from ampdoctor.facts.words import IslandOutput
from ampdoctor.probe.plan import LineChange, ModuleFormats

FORMAT_NAMES = {
    "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32",
}  # fmt: skip
"""{name in a plan and in a table: the format}"""


@dataclass(frozen=True)
class TreatmentPlan:
    """What a treatment changes. A key that is not there leaves what the user has."""

    loss_scale: float | None = None
    """The scale to start from; None leaves it as configured."""
    dtype: str | None = None
    """``bfloat16``: the low precision of everything; None leaves it as configured."""
    fp32: tuple[str, ...] = ()
    """Paths of modules that run in FP32, with all inside them; '' is the whole model."""
    output: IslandOutput = "fp32"
    """Those modules' outputs stay FP32, or are cast back to the low precision."""
    loss_fp32: bool = False
    """What is outside the model's modules, the loss, runs in FP32: autocast is around the model only."""
    scales: Mapping[str, float] = field(default_factory=dict)
    """{module path: factor}: its backward, with all inside it, runs at the loss scale times this."""
    lines: tuple[LineChange, ...] = ()
    """Lines of the user's code to edit. A scan runs them so; ``apply`` cannot, and says so."""
    formats: tuple[ModuleFormats, ...] = ()
    """Modules whose values are rounded to a format each, all else in FP32. ``prescribe`` proves such a table;
    neither ``apply`` nor a scan runs it, and both say so."""


def check_paths(plan: TreatmentPlan, modules: Iterable[str]) -> None:
    """Nothing; ConfigError for a module that is not among ``modules``, with the nearest name, and for
    formats, which are a table to read."""
    known = list(modules)
    if plan.formats:
        raise ConfigError(
            "formats: nothing here trains or scans with a format per module",
            "take the key out; `ampdoctor prescribe --formats` proves a table by rounding in FP32, and FP8 "
            "itself needs kernels of its own (Transformer Engine, torchao)",
        )
    for key, paths in (("fp32", plan.fp32), ("scales", plan.scales)):
        for path in paths:
            if path not in known:
                raise ConfigError(f"{key}: the model has no module {path!r}", nearest(path, known))


def nearest(name: str, known: list[str]) -> str:
    """A hint that names the closest of ``known``."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else "paths are those of model.named_modules()"


def format_word(fmt: str) -> str:
    """``e4m3`` for ``float8_e4m3fn``: the format's name in a plan."""
    return next(word for word, name in FORMAT_NAMES.items() if name == fmt)


def change_words(change: LineChange) -> str:
    """``model.py:47 with 1.0e-4 in place of 1.0e-8``, ``model.py:47 in FP32``."""
    at = source_place(Source(change.file, change.line, "", ""))
    if change.constant is None or change.becomes is None:
        return f"{at} in FP32"
    return f"{at} with {number(change.becomes)} in place of {number(change.constant)}"


def plan_words(plan: TreatmentPlan, none_can_go: bool = False) -> str:
    """What the plan changes: ``blocks.1.ff.wo in FP32``. ``none_can_go``: of its modules, as was run."""
    parts = []
    if plan.dtype is not None:
        parts.append("BF16 for all" if plan.dtype == "bfloat16" else f"{plan.dtype} for all")
    elif plan.fp32 or plan.loss_fp32:
        parts.append(_in_fp32(plan, none_can_go))
    parts += [
        f"{place(path)} at {scale(factor)} times the loss scale" for path, factor in plan.scales.items()
    ]
    parts += [change_words(change) for change in plan.lines]
    if plan.formats:
        parts.append("a format for each module, all else in FP32")
    if plan.loss_scale is not None and plan.dtype is None:
        parts.append(f"loss scale {scale(plan.loss_scale)}")
    return ", ".join(parts)


def _in_fp32(plan: TreatmentPlan, none_can_go: bool) -> str:
    modules = ["the whole model" if path == "" else place(path) for path in plan.fp32]
    what = listing([*modules, *(["the loss"] if plan.loss_fp32 else [])])
    after = " (outputs cast back)" if plan.fp32 and plan.output == "cast" else ""
    none_less = "; none of them can be left out" if none_can_go and len(plan.fp32) > 1 else ""
    around = "; autocast around each call of the model only" if plan.loss_fp32 else ""
    return f"{what} in FP32{after}{none_less}{around}"

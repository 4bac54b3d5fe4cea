"""A treatment: what of a model runs how."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ampdoctor.diagnose.wording import number, source_place
from ampdoctor.errors import ConfigError
from ampdoctor.facts.site import Source
from ampdoctor.probe.plan import LineChange

Output = Literal["fp32", "cast"]


@dataclass(frozen=True)
class TreatmentPlan:
    """What a treatment changes. A key that is not there leaves what the user has."""

    loss_scale: float | None = None
    """The scale to start from; None leaves it as configured."""
    dtype: str | None = None
    """``bfloat16``: the low precision of everything; None leaves it as configured."""
    fp32: tuple[str, ...] = ()
    """Paths of modules that run in FP32, with all inside them; '' is the whole model."""
    output: Output = "fp32"
    """Those modules' outputs stay FP32, or are cast back to the low precision."""
    loss_fp32: bool = False
    """What is outside the model's modules, the loss, runs in FP32: autocast is around the model only."""
    scales: Mapping[str, float] = field(default_factory=dict)
    """{module path: factor}: its backward, with all inside it, runs at the loss scale times this."""
    lines: tuple[LineChange, ...] = ()
    """Lines of the user's code to edit. A scan runs them so; ``apply`` cannot, and says so."""


def check_paths(plan: TreatmentPlan, modules: Iterable[str]) -> None:
    """Nothing; ConfigError for a module that is not among ``modules``, with the nearest name."""
    known = list(modules)
    for key, paths in (("fp32", plan.fp32), ("scales", plan.scales)):
        for path in paths:
            if path not in known:
                raise ConfigError(f"{key}: the model has no module {path!r}", nearest(path, known))


def nearest(name: str, known: list[str]) -> str:
    """A hint that names the closest of ``known``."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else "paths are those of model.named_modules()"


def change_words(change: LineChange) -> str:
    """``model.py:47 with 1.0e-4 in place of 1.0e-8``, ``model.py:47 in FP32``."""
    at = source_place(Source(change.file, change.line, "", ""))
    if change.constant is None or change.becomes is None:
        return f"{at} in FP32"
    return f"{at} with {number(change.becomes)} in place of {number(change.constant)}"

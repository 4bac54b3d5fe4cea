"""A treatment as a file, ``plan.yaml``: what of a model runs how."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import yaml

from ampdoctor.errors import ConfigError

VERSION = 1
"""Of the file format, under ``ampdoctor_plan``."""

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


def plan_text(plan: TreatmentPlan) -> str:
    """The plan as YAML, with only the keys that change something."""
    document: dict[str, Any] = {"ampdoctor_plan": VERSION}
    if plan.loss_scale is not None:
        document["loss_scale"] = int(plan.loss_scale) if plan.loss_scale.is_integer() else plan.loss_scale
    if plan.dtype is not None:
        document["dtype"] = plan.dtype
    if plan.fp32:
        document |= {"fp32": list(plan.fp32), "output": plan.output}
    if plan.loss_fp32:
        document["loss_fp32"] = True
    return str(yaml.safe_dump(document, sort_keys=False))


def read_plan(path: Path) -> TreatmentPlan:
    """The plan in the file. Raises ConfigError, with the key, for what is none."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(document, dict) or "ampdoctor_plan" not in document:
        raise ConfigError(f"{path} is not a plan", "a plan begins with ampdoctor_plan: 1")
    version = document.pop("ampdoctor_plan")
    if version != VERSION:
        raise ConfigError(f"{path}: ampdoctor_plan: {version}; this ampdoctor reads version {VERSION}")
    known = [field.name for field in fields(TreatmentPlan)]
    for key, value in document.items():
        if key not in known:
            raise ConfigError(f"{path}: a plan has no key {key!r}", _nearest(str(key), known))
        if not _CHECKS[key][0](value):
            raise ConfigError(f"{path}: {key}: {value!r} is not {_CHECKS[key][1]}")
    paths = tuple(document.pop("fp32", ()))
    return TreatmentPlan(fp32=paths, **document)


def check_paths(plan: TreatmentPlan, modules: Iterable[str]) -> None:
    """Nothing; ConfigError for a module that is not among ``modules``, with the nearest name."""
    known = list(modules)
    for path in plan.fp32:
        if path not in known:
            raise ConfigError(f"fp32: the model has no module {path!r}", _nearest(path, known))


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else "paths are those of model.named_modules()"


def _is_scale(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and value > 0


_CHECKS: dict[str, tuple[Any, str]] = {
    "loss_scale": (_is_scale, "a number above 0"),
    "dtype": (lambda value: value in ("float16", "bfloat16"), "float16 or bfloat16"),
    "fp32": (
        lambda value: isinstance(value, list) and all(isinstance(path, str) for path in value),
        "a list of module paths",
    ),
    "output": (lambda value: value in ("fp32", "cast"), "fp32 or cast"),
    "loss_fp32": (lambda value: isinstance(value, bool), "true or false"),
}
"""{key: (whether a value is one, what one is)}"""

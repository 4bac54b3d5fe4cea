"""``plan.yaml``: a treatment plan as a file."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from ampdoctor.errors import ConfigError
from ampdoctor.files import read_bounded
from ampdoctor.probe.plan import LineChange, ModuleFormats
from ampdoctor.remedy.plan import FORMAT_NAMES, TreatmentPlan, format_word, nearest
from ampdoctor.safe_yaml import BadYaml, load

VERSION = 1
"""Of the file format, under ``ampdoctor_plan``."""


def plan_text(plan: TreatmentPlan) -> str:
    """The plan as YAML, with only the keys that change something."""
    document: dict[str, Any] = {"ampdoctor_plan": VERSION}
    if plan.loss_scale is not None:
        document["loss_scale"] = _number(plan.loss_scale)
    if plan.dtype is not None:
        document["dtype"] = plan.dtype
    if plan.fp32:
        document |= {"fp32": list(plan.fp32), "output": plan.output}
    if plan.loss_fp32:
        document["loss_fp32"] = True
    if plan.scales:
        document["scales"] = {path: _number(factor) for path, factor in plan.scales.items()}
    if plan.lines:
        document["lines"] = [_line(change) for change in plan.lines]
    if plan.formats:
        document["formats"] = {
            item.path: {"forward": format_word(item.forward), "gradient": format_word(item.gradient)}
            for item in plan.formats
        }
    return str(yaml.safe_dump(document, sort_keys=False))


def read_plan(path: Path) -> TreatmentPlan:
    """The plan in the file. Raises ConfigError, with the key, for what is none."""
    try:
        document = load(read_bounded(path).decode())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except BadYaml as error:
        place = path if error.line is None else f"{path}:{error.line}"
        raise ConfigError(f"{place}: not valid YAML: {error}", error.hint) from error
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is no text file in UTF-8") from None
    if not isinstance(document, dict) or "ampdoctor_plan" not in document:
        raise ConfigError(f"{path} is not a plan", "a plan begins with ampdoctor_plan: 1")
    version = document.pop("ampdoctor_plan")
    if version != VERSION:
        raise ConfigError(f"{path}: ampdoctor_plan: {version}; this ampdoctor reads version {VERSION}")
    known = [field.name for field in fields(TreatmentPlan)]
    for key, value in document.items():
        if key not in known:
            raise ConfigError(f"{path}: a plan has no key {key!r}", nearest(str(key), known))
        if not _CHECKS[key][0](value):
            raise ConfigError(f"{path}: {key}: {value!r} is not {_CHECKS[key][1]}", _quotes(value))
    paths = tuple(document.pop("fp32", ()))
    lines = tuple(LineChange(**change) for change in document.pop("lines", ()))
    formats = tuple(
        ModuleFormats(name, FORMAT_NAMES[pair["forward"]], FORMAT_NAMES[pair["gradient"]])
        for name, pair in document.pop("formats", {}).items()
    )
    return TreatmentPlan(fp32=paths, lines=lines, formats=formats, **document)


def _quotes(value: Any) -> str:
    """A hint for a module's name that YAML reads as a number: ``1`` in ``{1: 256}``."""
    names = value if isinstance(value, dict | list) else ()
    numeric = next((name for name in names if isinstance(name, int | float)), None)
    return "" if numeric is None else f'put the module\'s name in quotes: "{numeric}"'


def _is_format_pair(value: Any) -> bool:
    """A format of forward and one of gradients."""
    return (
        isinstance(value, dict)
        and set(value) == {"forward", "gradient"}
        and all(isinstance(name, str) and name in FORMAT_NAMES for name in value.values())
    )


def _line(change: LineChange) -> dict[str, Any]:
    at = {"file": change.file, "line": change.line}
    return at if change.constant is None else {**at, "constant": change.constant, "becomes": change.becomes}


def _is_line(value: Any) -> bool:
    """A file and a line; with a number that is replaced, the one that it becomes."""
    keys = set(value) if isinstance(value, dict) else set()
    if keys not in ({"file", "line"}, {"file", "line", "constant", "becomes"}):
        return False
    numbers = [v for key, v in value.items() if key in ("constant", "becomes")]
    return (
        isinstance(value["file"], str)
        and isinstance(value["line"], int)
        and all(isinstance(v, int | float) and not isinstance(v, bool) for v in numbers)
    )


def _number(value: float) -> float:
    """An int where it is one: ``4096``, not ``4096.0``."""
    return int(value) if float(value).is_integer() else value


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
    "lines": (
        lambda value: isinstance(value, list) and all(map(_is_line, value)),
        "a list of {file, line}, each with {constant, becomes} or in FP32",
    ),
    "scales": (
        lambda value: (
            isinstance(value, dict)
            and all(isinstance(path, str) and _is_scale(factor) for path, factor in value.items())
        ),
        "module paths, each with a number above 0",
    ),
    "formats": (
        lambda value: (
            isinstance(value, dict)
            and all(isinstance(path, str) and _is_format_pair(pair) for path, pair in value.items())
        ),
        f"module paths, each with {{forward, gradient}} out of {', '.join(FORMAT_NAMES)}",
    ),
}
"""{key: (whether a value is one, what one is)}"""

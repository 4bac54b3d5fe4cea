"""What is wrong with a config, one sentence each, with the key, what came, and the likely meaning."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ampdoctor.config.document import Document, KeyPath, dotted
from ampdoctor.config.schema import Config
from ampdoctor.config.workload import DATA_SOURCES, LOSS_SOURCES

OTHER_NAMES = {
    "fp16": "float16",
    "half": "float16",
    "f16": "float16",
    "torch.float16": "float16",
    "torch.half": "float16",
    "bf16": "bfloat16",
    "torch.bfloat16": "bfloat16",
    "fp32": "float32",
    "float": "float32",
    "int": "int64",
    "long": "int64",
    "amp": "autocast",
    "ce": "cross_entropy",
    "mae": "l1",
    "kl": "kl_div",
    "binary_cross_entropy": "bce",
}
"""What people call a value elsewhere: the contract's name for it."""

EXPECTED = {
    "float": "a number",
    "bool": "true or false",
    "int": "a whole number",
    "string": "text",
    "dict": "a mapping",
    "model": "a mapping",
    "list": "a list",
    "date": "a date like 2027-01-31",
}
"""The first word of pydantic's type errors: what to write instead."""


def describe(error: ValidationError, document: Document) -> list[str]:
    """One line per mistake, in the order of the file."""
    details = [(_path(e), e) for e in error.errors()]
    suggested = {
        (*path[:-1], near)
        for path, e in details
        if e["type"] == "extra_forbidden" or _is_bad_glob(path, e)
        if (near := _near(path[-1], _keys_at(path[:-1])))
    }
    lines = []
    for path, e in details:
        if e["type"] == "missing" and path in suggested:
            continue  # Its misspelled self is reported already.
        lines.append((_line(document, path), f"{document.where(path)}: {_sentence(path, e, document)}"))
    return [text for _, text in sorted(lines, key=lambda pair: pair[0])]


def _line(document: Document, path: KeyPath) -> int:
    return next((document.lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in document.lines), 0)


_MARKS = {
    *(f"<{source}>" for source in (*DATA_SOURCES, *LOSS_SOURCES)),
    "<dynamic>",
    "<start>",
    "<number>",
    "[key]",
}
"""In pydantic's paths: the tags of our unions' members, and its own mark for a mapping's key."""


def _path(error: ErrorDetails) -> KeyPath:
    # An unknown key is the user's own word, whatever it looks like.
    parts = [str(part) for part in error["loc"]]
    own = [parts.pop()] if error["type"] == "extra_forbidden" and parts else []
    return (*(part for part in parts if part not in _MARKS), *own)


def _sentence(path: KeyPath, error: ErrorDetails, document: Document) -> str:
    kind, got, context = error["type"], error["input"], error.get("ctx", {})
    if _is_bad_glob(path, error):
        kind = "extra_forbidden"
    if kind == "extra_forbidden":
        return _unknown_key(path, document)
    if kind == "missing":
        return "is required"
    if kind == "literal_error":
        return _not_allowed(path, got)
    if kind.startswith("union_tag"):
        return _no_source(path, got)
    if kind == "value_error":
        return str(context["error"])
    if kind == "finite_number":
        return f"must be a finite number, got {got}"
    if kind in ("greater_than", "greater_than_equal", "less_than", "less_than_equal"):
        bound = next(iter(context.values()))
        word = {"greater_than": "greater than", "less_than": "less than"}.get(
            kind, "at least" if kind.startswith("greater") else "at most"
        )
        return f"must be {word} {bound:g}, got {got}"
    if kind in ("string_too_short", "too_short"):
        return "must not be empty"
    if kind == "invalid_key" or error["loc"][-1] == "[key]":
        return f"keys are text; put {got} in quotes"
    expected = EXPECTED.get(kind.split("_")[0])
    if expected is None:
        return f"{error['msg'][:1].lower()}{error['msg'][1:]}, got {_shown(got)}"
    return f"expected {expected}, got {_shown(got)}{_mapping_hint(path, expected, got)}"


def _is_bad_glob(path: KeyPath, error: ErrorDetails) -> bool:
    # In `limits`, a key that is no limit is a module glob, and a glob has a mapping.
    return len(path) == 2 and path[0] == "limits" and error["type"].startswith("model")


def _unknown_key(path: KeyPath, document: Document) -> str:
    known = _keys_at(path[:-1])
    if path[-1] in known:
        section = document.values
        for part in path[:-1]:
            section = section.get(part, {}) if isinstance(section, dict) else {}
        source = next(k for k in (*DATA_SOURCES, *LOSS_SOURCES) if k in section and k != path[-1])
        return f"cannot stand next to '{source}'; keep one of the two"
    near = _near(path[-1], known)
    if near:
        return f"unknown key; did you mean '{near}'?"
    elsewhere = [dotted(p) for p in KEY_PATHS if p[-1] == path[-1] and "*" not in p]
    if len(elsewhere) == 1:
        return f"unknown key; did you mean '{elsewhere[0]}'?"
    globs = "; or a mapping of limits for a module glob" if path[:-1] == ("limits",) else ""
    return f"unknown key (known: {', '.join(known)}{globs})"


def _not_allowed(path: KeyPath, got: object) -> str:
    allowed = VALUES.get(_generic(path), ())
    names = [str(value) for value in allowed]
    near = OTHER_NAMES.get(str(got).lower()) or _near(str(got), names)
    suggestion = f"; did you mean '{near}'?" if near in names else ""
    return f"{_shown(got)} is not allowed{suggestion} (allowed: {', '.join(names)})"


def _no_source(path: KeyPath, got: object) -> str:
    section = path[-1]
    forms = {
        "data": f"{', '.join(DATA_SOURCES[:-1])} or {DATA_SOURCES[-1]}",
        "loss": "{target: file.py:name}, {builtin: cross_entropy} or none",
    }[section]
    if isinstance(got, Mapping):
        keys = [str(key) for key in got]
        near = [(key, guess) for key in keys if (guess := _near(key, _keys_at(path)))]
        if near:
            return f"needs one of {forms}; '{near[0][0]}' may be meant as '{near[0][1]}'"
        return f"needs one of {forms}" + (f", got only {', '.join(keys)}" if keys else "")
    if isinstance(got, str):
        builtin = OTHER_NAMES.get(got) or _near(got, [str(value) for value in VALUES["loss", "builtin"]])
        if section == "loss" and builtin:
            return f"expected {forms}, got {_shown(got)}; did you mean {{builtin: {builtin}}}?"
        key = "target" if ":" in got else ("file" if section == "data" else "builtin")
        return f"expected a mapping, got {_shown(got)}; write {section}: {{{key}: {got}}}"
    return f"expected {forms}, got {_shown(got)}"


def _mapping_hint(path: KeyPath, expected: str, got: object) -> str:
    if expected == "a mapping" and isinstance(got, str) and ":" in got and (*path, "target") in KEY_PATHS:
        return f"; write {dotted(path)}: {{target: {got}}}"
    return ""


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"'{value}'" if len(value) <= 60 else f"'{value[:57]}...'"
    if isinstance(value, Mapping):
        return f"a mapping with {', '.join(map(str, list(value)[:4]))}" if value else "an empty mapping"
    if isinstance(value, list):
        return "a list"
    return "nothing" if value is None else str(value)


def _near(name: str, names: list[str]) -> str:
    """The known name that ``name`` is most likely a slip of; '' if none is close."""
    lowered = {known.lower(): known for known in names}
    close = difflib.get_close_matches(name.lower().replace("-", "_"), list(lowered), n=1)
    return lowered[close[0]] if close else ""


def _keys_at(path: KeyPath) -> list[str]:
    section = _generic(path)
    found = [p[-1] for p in KEY_PATHS if len(p) == len(section) + 1 and p[:-1] == section and p[-1] != "*"]
    return list(dict.fromkeys(found))


def _generic(path: KeyPath) -> KeyPath:
    """The path with '*' for list positions and free names, as KEY_PATHS has it."""
    generic: KeyPath = ()
    for part in path:
        exact = (*generic, part)
        generic = exact if exact in KEY_PATHS else (*generic, "*")
    return generic


def _sections(annotation: Any) -> Iterator[tuple[KeyPath, Any]]:
    """(('*',) inside a list or dict else (), type) for every type within an annotation."""
    inner = get_args(annotation)
    if not inner:
        yield (), annotation
    elif get_origin(annotation) is list or get_origin(annotation) is dict:
        for path, kind in _sections(inner[-1]):
            yield ("*", *path), kind
    else:
        for part in inner:
            yield from _sections(part)


def _contract(section: type[BaseModel], prefix: KeyPath = ()) -> Iterator[tuple[KeyPath, tuple[object, ...]]]:
    """Every key path of the contract with its allowed values, () where they are not enumerated."""
    for name, key in section.model_fields.items():
        path = (*prefix, name)
        inner = list(_sections(key.annotation))
        yield path, tuple(value for _, value in inner if isinstance(value, (str, int)))
        for below, kind in inner:
            if below:
                yield (*path, *below), ()
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from _contract(kind, (*path, *below))
    extra = section.__annotations__.get("__pydantic_extra__")
    if extra:
        from ampdoctor.config.judging import LayerLimits

        yield (*prefix, "*"), ()
        yield from _contract(LayerLimits, (*prefix, "*"))


VALUES: dict[KeyPath, tuple[object, ...]] = dict(_contract(Config))
"""{key path: allowed values, () where they are not enumerated}; '*' is a list position or a free name."""
KEY_PATHS: tuple[KeyPath, ...] = tuple(VALUES)
"""Every key path of the contract."""

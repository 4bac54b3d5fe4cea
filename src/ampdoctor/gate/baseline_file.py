"""The baseline's file: small, sorted, a line per finding and per layer, so that a review shows what changed.

One file holds a section for each config, by the config's path from the file's folder.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from ampdoctor.facts.store import TraceFileError, from_json
from ampdoctor.gate.baseline import Known

FORMAT = "ampdoctor.baseline"
VERSION = 1
"""Of the file format."""


class BaselineError(ValueError):
    """A text that is no baseline this version can read; the message says why."""


def dump(sections: Mapping[str, Known]) -> str:
    """The file's text: the same sections give the same bytes."""
    document = {
        "schema": f"{FORMAT}/{VERSION}",
        "configs": {name: _plain(sections[name]) for name in sorted(sections)},
    }
    return _lines(document, "") + "\n"


def parse(text: str) -> dict[str, Known]:
    """{config: its section}. Raises BaselineError for a damaged, foreign or newer file."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BaselineError(f"it holds no readable JSON ({error})") from error
    schema = document.get("schema") if isinstance(document, dict) else None
    name, _, version = schema.partition("/") if isinstance(schema, str) else ("", "", "")
    if name != FORMAT:
        found = 'it has no "schema"' if schema is None else f'its "schema" is {schema!r}'
        raise BaselineError(f'it is no baseline ("{FORMAT}/{VERSION}" was expected): {found}')
    if version != str(VERSION):
        reads = f'this ampdoctor reads "{FORMAT}/{VERSION}"'
        raise BaselineError(f'it is of another version ("{schema}"); {reads}')
    configs = document.get("configs")
    if not isinstance(configs, dict):
        raise BaselineError('it is damaged: it has no "configs"')
    sections: dict[str, Known] = {}
    for config, section in configs.items():
        try:
            sections[config] = from_json(Known, section)
        except TraceFileError as error:
            raise BaselineError(f'it is damaged: configs."{config}": {error}') from error
    return sections


def _plain(value: Any) -> Any:
    """A section without the keys that say nothing."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if is_dataclass(value):
        pairs = ((f.name, getattr(value, f.name)) for f in fields(value))
        return {name: _plain(item) for name, item in pairs if item is not None}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _lines(value: Any, indent: str) -> str:
    """JSON with what holds no further list or mapping on one line."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if not any(isinstance(item, dict | list) for item in items):
        return json.dumps(value, allow_nan=False)
    inner = indent + "  "
    if isinstance(value, dict):
        rows = [f"{inner}{json.dumps(key)}: {_lines(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    return "[\n" + ",\n".join(f"{inner}{_lines(item, inner)}" for item in value) + f"\n{indent}]"

"""The baseline's file: small, sorted, a line per finding and per layer, so that a review shows what changed.

One file holds a section for each config, by the config's path from the file's folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ampdoctor.gate.baseline import Known
from ampdoctor.store.codec import from_bytes, to_plain

SCHEMA = "ampdoctor.baseline/1"


@dataclass(frozen=True)
class _Baseline:
    configs: Mapping[str, Known]


def dump(sections: Mapping[str, Known]) -> str:
    """The file's text: the same sections give the same bytes."""
    ordered = _Baseline({name: sections[name] for name in sorted(sections)})
    return _lines({"schema": SCHEMA, **to_plain(ordered)}, "") + "\n"


def parse(data: bytes) -> Mapping[str, Known]:
    """{config: its section}. Raises FileError for a damaged, foreign or newer file."""
    return from_bytes(_Baseline, data, SCHEMA).configs


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

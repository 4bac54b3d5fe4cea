"""Facts as plain data, for JSON documents."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any


def to_json(value: Any) -> Any:
    """The value as dicts, lists, strings, numbers and None, ready for ``json.dumps(allow_nan=False)``."""
    if isinstance(value, bool) or value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return number(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no place in a document")


def number(value: float) -> float | str:
    """The number; "nan", "inf" or "-inf" for what JSON has no number for."""
    return value if math.isfinite(value) else str(value)

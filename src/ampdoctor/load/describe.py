"""Values in words: what came where something else was needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch


def describe(value: object, depth: int = 0) -> str:
    """``a tuple of 2 (a tensor of shape [8, 10], a dict with the keys a and b)``."""
    if value is None:
        return "None"
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)}, {dtype_name(value)}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, (bool, int, float)):
        return f"the number {value}"
    if isinstance(value, str):
        return f"the text {value[:40]!r}"
    if isinstance(value, Mapping):
        keys = [str(key) for key in value]
        return f"{_name(value)} with the keys {listed(keys)}" if keys else f"an empty {type(value).__name__}"
    if isinstance(value, (list, tuple)) and not value:
        return f"an empty {type(value).__name__}"
    if isinstance(value, (list, tuple)):
        if depth:
            return f"a {type(value).__name__} of {len(value)}"
        inner = ", ".join(describe(item, depth + 1) for item in value[:3])
        dots = ", ..." if len(value) > 3 else ""
        return f"a {type(value).__name__} of {len(value)} ({inner}{dots})"
    if isinstance(value, torch.nn.Module):
        return f"the module {type(value).__name__}"
    if callable(value) and hasattr(value, "__name__"):
        return f"the function {value.__name__}"
    return _name(value)


def listed(names: Sequence[str], limit: int = 8) -> str:
    """``a, b, c``; what is past the limit is counted."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def dtype_name(tensor: torch.Tensor) -> str:
    """``float16``."""
    return str(tensor.dtype).removeprefix("torch.")


def _name(value: object) -> str:
    name = type(value).__name__
    article = "an" if name[:1].lower() in "aeiou" else "a"
    return f"{article} {name}"

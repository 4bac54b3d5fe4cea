"""A tape's values and functions as plain data, and back; no code but torch's is named by data."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ampdoctor.errors import LoadError
from ampdoctor.load.script.tape import Leaf, Ref

Seal = Callable[[Any], Any]
"""A tensor's stand-in (a Ref, a Leaf) as data."""
Unseal = Callable[[str, Any], Any]
"""The stand-in that the data under this tag names."""

_UNNAMED = {"torch.autograd.grad": torch.autograd.grad}
"""Functions on a tape that ``torch.overrides`` knows no name for."""
_KINDS = (torch.dtype, torch.memory_format, torch.layout)
SEALED = ("made", "batch", "parameter", "tensor")
"""Tags of tensors: what an earlier call made, one of the batch, a weight, one kept beside the weights."""


def name_of(function: Any) -> str:
    """What torch calls the function. Raises LoadError for one that torch cannot be asked for by name."""
    named = torch.overrides.resolve_name(function)
    if named is not None and _functions().get(named) is not None:
        return str(named)
    for own, known in _UNNAMED.items():
        if known is function:
            return own
    raise LoadError(f"a call of {getattr(function, '__qualname__', type(function).__name__)} has no name")


def function_of(name: str) -> Any:
    """The function of that name. Raises LoadError where this torch has none."""
    found = _functions().get(name)
    if found is None:
        raise LoadError(f"torch {torch.__version__} has no function {name}")
    return found


@cache
def _functions() -> dict[str, Any]:
    """By name, every function that a tape can hold; no other is ever looked up."""
    known: dict[str, Any] = dict(_UNNAMED)
    for functions in torch.overrides.get_overridable_functions().values():
        for function in functions:
            named = torch.overrides.resolve_name(function)
            if named is not None:
                known.setdefault(named, function)
    return known


def encoded(value: Any, seal: Seal) -> Any:
    """The value as JSON. Raises LoadError, with its type, for one that has no place there."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, (Ref, Leaf)):
        return seal(value)
    if type(value) is list:
        return [encoded(item, seal) for item in value]
    if isinstance(value, torch.Size):
        return {"size": list(value)}
    if type(value) is tuple:
        return {"tuple": [encoded(item, seal) for item in value]}
    if type(value) is dict:
        return {"dict": [[encoded(key, seal), encoded(item, seal)] for key, item in value.items()]}
    if type(value) is slice:
        return {"slice": [encoded(part, seal) for part in (value.start, value.stop, value.step)]}
    if value is Ellipsis:
        return {"ellipsis": True}
    if isinstance(value, _KINDS):
        return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if callable(value) and torch.overrides.resolve_name(value) is not None:
        return {"function": name_of(value)}
    if isinstance(value, Tensor):
        raise LoadError("a tensor stands where none can be kept")
    raise LoadError(f"a {type(value).__module__}.{type(value).__qualname__} cannot be written down")


def decoded(value: Any, unseal: Unseal) -> Any:
    """The value that ``encoded`` wrote. Raises LoadError for anything else."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return [decoded(item, unseal) for item in value]
    if not isinstance(value, dict) or len(value) != 1:
        raise _unknown(value)
    ((tag, inside),) = value.items()
    if tag in SEALED:
        return unseal(tag, inside)
    try:
        return _tagged(tag, inside, unseal)
    except LoadError:
        raise
    except (TypeError, ValueError, AttributeError, RuntimeError, KeyError) as error:
        raise _unknown(value) from error


def _tagged(tag: str, inside: Any, unseal: Unseal) -> Any:
    if tag == "float" and inside in ("nan", "inf", "-inf"):
        return float(inside)
    if tag == "tuple":
        return tuple(decoded(item, unseal) for item in inside)
    if tag == "size":
        return torch.Size(inside)
    if tag == "dict":
        return {decoded(key, unseal): decoded(item, unseal) for key, item in inside}
    if tag == "slice":
        start, stop, step = inside
        return slice(*(decoded(part, unseal) for part in (start, stop, step)))
    if tag == "ellipsis":
        return Ellipsis
    if tag == "torch":
        found = getattr(torch, str(inside))
        if isinstance(found, _KINDS):
            return found
    if tag == "device":
        return torch.device(inside)
    if tag == "function":
        return function_of(str(inside))
    raise _unknown({tag: inside})


def _unknown(value: Any) -> LoadError:
    return LoadError(f"it holds a value that this version cannot read: {str(value)[:80]}")

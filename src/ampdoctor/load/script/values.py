"""Tensors inside whatever a script hands to a function, and the same value with others in their place."""

from __future__ import annotations

import collections.abc
import copy
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn


def tensors_in(value: Any, depth: int = 0) -> Iterator[Tensor]:
    """Every tensor in the value, always in the same order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, collections.abc.Mapping):
        for item in list(value.values()):
            yield from tensors_in(item, depth + 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item, depth + 1)
    elif _is_record(value) and depth < 8:
        for item in list(vars(value).values()):
            yield from tensors_in(item, depth + 1)


def mapped(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """A copy of the value's containers with ``change(tensor)`` for each tensor; without tensors, itself."""
    if isinstance(value, Tensor):
        return change(value)
    if next(tensors_in(value), None) is None:
        return value
    if type(value) in (list, tuple):
        return type(value)(mapped(item, change) for item in value)
    if isinstance(value, tuple):  # a named tuple
        return type(value)(*(mapped(item, change) for item in value))
    if type(value) is dict:
        return {key: mapped(item, change) for key, item in value.items()}
    twin = copy.copy(value)
    if isinstance(twin, collections.abc.MutableMapping):
        for key, item in list(twin.items()):
            twin[key] = mapped(item, change)
    elif isinstance(twin, list):
        twin[:] = [mapped(item, change) for item in twin]
    else:
        for key, item in list(vars(twin).items()):
            setattr(twin, key, mapped(item, change))
    return twin


def _is_record(value: Any) -> bool:
    return hasattr(value, "__dict__") and not isinstance(value, (type, nn.Module)) and not callable(value)

"""Tensors inside whatever a script hands to a function, and the same value with others in their place."""

from __future__ import annotations

import collections.abc
import copy
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from torch import Tensor, nn

from ampdoctor.errors import LoadError

T = TypeVar("T")

_DEEPEST = 8
"""Objects within objects that are looked into."""


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor in the value, always in the same order."""
    return found_in(value, Tensor)


def found_in(value: Any, kind: type[T] | tuple[type[T], ...], within: tuple[int, ...] = ()) -> Iterator[T]:
    """Everything of this kind in the value, always in the same order.

    ``within``: the identities of the objects around the value.
    """
    if isinstance(value, kind):
        yield value
    elif isinstance(value, collections.abc.Mapping):
        for item in list(value.values()):
            yield from found_in(item, kind, within)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from found_in(item, kind, within)
    elif _is_record(value) and len(within) < _DEEPEST and id(value) not in within:
        for item in list(vars(value).values()):
            yield from found_in(item, kind, (*within, id(value)))


def mapped(
    value: Any,
    kind: type[Any] | tuple[type[Any], ...],
    change: Callable[[Any], Any],
    within: tuple[int, ...] = (),
) -> Any:
    """A copy of the value's containers with ``change(x)`` for each x of this kind; with none in it, itself.

    The value is left as it is, and no code of the user's that sets things in it is called: a frozen dataclass
    is as good as any object. Raises LoadError for what cannot be copied so.
    """
    if isinstance(value, kind):
        return change(value)
    if next(found_in(value, kind, within), None) is None:
        return value
    if type(value) in (list, tuple):
        return type(value)(mapped(item, kind, change, within) for item in value)
    if type(value) is dict:
        return {key: mapped(item, kind, change, within) for key, item in value.items()}
    if isinstance(value, tuple):
        # a named tuple's own constructor may check or convert what it is given; torch's take one sequence
        make = getattr(type(value), "_make", type(value))
        return _made(value, lambda: make([mapped(item, kind, change, within) for item in value]))
    return _twin(value, lambda item: mapped(item, kind, change, (*within, id(value))))


def _twin(value: Any, change: Callable[[Any], Any]) -> Any:
    """A copy of a dict, a list, or any object, with ``change`` of what it holds."""
    twin = _made(value, lambda: copy.copy(value))
    own: dict[str, Any] | None = getattr(twin, "__dict__", None)
    if twin is value or (own is not None and own is getattr(value, "__dict__", None)):
        raise _not_copied(value)
    if isinstance(twin, dict):
        for key, item in list(twin.items()):
            dict.__setitem__(twin, key, change(item))
    elif isinstance(twin, list):
        list.__setitem__(twin, slice(None), [change(item) for item in twin])
    elif own is None:
        raise _not_copied(value)
    if own is not None:
        own.update({key: change(item) for key, item in own.items()})
    return twin


def _made(value: Any, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except LoadError:
        raise
    except Exception as error:  # the user's class has rules of its own for who is made of what
        raise _not_copied(value) from error


def _not_copied(value: Any) -> LoadError:
    return LoadError(f"a {type(value).__name__} with tensors in it cannot be copied")


def _is_record(value: Any) -> bool:
    return hasattr(value, "__dict__") and not isinstance(value, (type, nn.Module)) and not callable(value)

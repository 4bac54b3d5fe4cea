"""The tensors and numbers among the arguments of an op."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch._ops import HigherOrderOperator, OpOverload

AnyOp = OpOverload | HigherOrderOperator


def flat(values: Any) -> Iterator[Any]:
    """The leaves of nested lists, tuples and dicts of op arguments or outputs."""
    if isinstance(values, (list, tuple)):
        for value in values:
            yield from flat(value)
    elif isinstance(values, dict):
        for value in values.values():
            yield from flat(value)
    else:
        yield values


def largest_scalar(args: tuple[Any, ...], kwargs: dict[str, Any]) -> float | None:
    """The number of the largest magnitude among an op's arguments; None if it has none."""
    numbers = [
        float(v) for v in flat((args, kwargs)) if isinstance(v, (int, float)) and not isinstance(v, bool)
    ]
    return max(numbers, key=abs, default=None)


def smallest_scalar(args: tuple[Any, ...], kwargs: dict[str, Any]) -> float | None:
    """The nonzero number of the least magnitude among an op's arguments; None if it has none."""
    numbers = [abs(v) for v in flat((args, kwargs)) if isinstance(v, float) and v != 0]
    return min(numbers, default=None)


def written(func: AnyOp, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors that an op writes to, in the order of its schema."""
    if isinstance(func, HigherOrderOperator):
        return []
    found = []
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            found += [t for t in flat(value) if isinstance(t, Tensor)]
    return found

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


_UNANNOUNCED = {
    f"aten::{name}": ("running_mean", "running_var")
    for name in (
        "native_batch_norm",
        "cudnn_batch_norm",
        "miopen_batch_norm",
        "batch_norm",
        "_batch_norm_impl_index",
    )
}
"""Arguments that an op writes to though its schema does not say so (native_functions.yaml of torch)."""


def written(func: AnyOp, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors that an op writes to, in the order of its schema."""
    if isinstance(func, HigherOrderOperator):
        return []
    found = []
    unannounced = _UNANNOUNCED.get(func._schema.name, ())
    for i, argument in enumerate(func._schema.arguments):
        announced = argument.alias_info is not None and argument.alias_info.is_write
        if announced or argument.name in unannounced:
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            found += [t for t in flat(value) if isinstance(t, Tensor)]
    return found

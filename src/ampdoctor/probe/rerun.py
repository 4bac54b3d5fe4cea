"""One op, run again on the inputs it had, in float64: the value it should have given."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from ampdoctor.probe.observer import AnyOp, flat

_LOW_PRECISION = (torch.float16, torch.bfloat16, torch.float32)


def written_copied(
    func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments as they are before the call: those that the op writes to, copied."""
    schema = func._schema.arguments
    written = {i for i, a in enumerate(schema) if a.alias_info is not None and a.alias_info.is_write}
    names = {schema[i].name for i in written}

    def copied(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.clone() if value.layout == torch.strided else value
        return [copied(v) for v in value] if isinstance(value, (list, tuple)) else value

    return (
        tuple(copied(a) if i in written else a for i, a in enumerate(args)),
        {k: copied(v) if k in names else v for k, v in kwargs.items()},
    )


def rerun_in_float64(
    func: AnyOp, args: tuple[Any, ...], kwargs: dict[str, Any], output: int, rng: Any
) -> Tensor | None:
    """The op's output in float64 on the same inputs, on the host; None where the op cannot run in float64."""

    def widen(value: Any) -> Any:
        if isinstance(value, Tensor):
            wide = value.dtype in _LOW_PRECISION and value.layout == torch.strided
            return value.detach().double() if wide else value.detach().clone()
        if isinstance(value, (list, tuple)):
            return type(value)(widen(v) for v in value)
        if value in _LOW_PRECISION:
            return torch.float64
        return value

    after = torch.get_rng_state()
    try:
        torch.set_rng_state(rng)
        result = func(*widen(args), **{k: widen(v) for k, v in kwargs.items()})
    except (RuntimeError, NotImplementedError, TypeError):
        return None  # no float64 kernel (fused attention has none): the reference pass decides then
    finally:
        torch.set_rng_state(after)
    tensors = [result] if isinstance(result, Tensor) else list(flat(result))
    chosen = tensors[output] if output < len(tensors) else None
    return chosen.cpu() if isinstance(chosen, Tensor) else None

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
    names = {a.name for a in schema if a.alias_info is not None and a.alias_info.is_write}
    positions = {i for i, a in enumerate(schema) if a.name in names}
    written = flat([[a for i, a in enumerate(args) if i in positions], [kwargs.get(name) for name in names]])
    storages = {_storage(t) for t in written if _has_memory(t)}

    def copied(value: Any) -> Any:
        if isinstance(value, Tensor):
            # An argument that is only read may be the very tensor that is written: x.mul_(x).
            return value.clone() if _has_memory(value) and _storage(value) in storages else value
        return [copied(v) for v in value] if isinstance(value, (list, tuple)) else value

    return tuple(copied(a) for a in args), {k: copied(v) for k, v in kwargs.items()}


def _has_memory(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided and not value.is_meta


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


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

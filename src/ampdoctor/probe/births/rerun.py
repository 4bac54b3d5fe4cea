"""One op, run again on the inputs it had, in float64: the value it should have given."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from ampdoctor.errors import is_out_of_memory
from ampdoctor.load.seeds import Drawn, drawing_again, generator_of
from ampdoctor.probe.cuda.half_to_float import widened
from ampdoctor.probe.watch.op_arguments import AnyOp, flat, written


def written_copied(
    func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments as they are before the call: those that the op writes to, copied."""
    storages = {_storage(t) for t in written(func, args, kwargs) if _has_memory(t)}

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


def generators(func: AnyOp, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Generator]:
    """Those that an op can draw from: the one it is given and its devices' own; none if it draws nothing."""
    seeded = torch.Tag.nondeterministic_seeded
    if isinstance(func, OpOverload) and func.namespace == "aten" and seeded not in func.tags:
        return []
    leaves = list(flat((args, kwargs)))
    named = [v for v in leaves if isinstance(v, torch.Generator)]
    # An op without tensors (randn) may name no device, and an op that is not torch's may draw from anything.
    devices = {torch.device("cpu"), *(v for v in leaves if isinstance(v, torch.device))}
    devices |= {v.device for v in leaves if isinstance(v, Tensor)}
    return [*named, *(g for device in devices if (g := generator_of(device)) is not None)]


def rerun_in_float64(
    func: AnyOp, args: tuple[Any, ...], kwargs: dict[str, Any], output: int, drawn: Drawn
) -> Tensor | None:
    """The op's output in float64 on the same inputs, brought to the host; None where the op cannot run so.

    Where the device's memory cannot hold it, the host computes it. ``drawn``: what the op drew from; it draws
    the same again, and leaves its generators alone.
    """
    host = torch.device("cpu")

    def widen(value: Any, on_host: bool) -> Any:
        if isinstance(value, Tensor):
            wide = _wide(value.dtype) if value.layout == torch.strided else value.dtype
            return value.detach().to(host if on_host else value.device, wide, copy=True)
        if isinstance(value, (list, tuple)):
            return type(value)(widen(v, on_host) for v in value)
        if isinstance(value, torch.device):
            return host if on_host else value
        return _wide(value) if isinstance(value, torch.dtype) else value

    def run(on_host: bool) -> Any:
        wide_args, wide_kwargs = (
            widened(func, widen(args, on_host)),
            {k: widen(v, on_host) for k, v in kwargs.items()},
        )
        with drawing_again(drawn):
            result = func(*wide_args, **wide_kwargs)
        return written(func, wide_args, wide_kwargs) if result is None else result

    # Without a result (fused attention, for one, has no float64 kernel) the reference pass decides.
    try:
        result = run(on_host=False)
    except Exception as error:
        if not is_out_of_memory(error) or drawn:
            return None
        try:
            result = run(on_host=True)
        except Exception:
            return None
    tensors = [result] if isinstance(result, Tensor) else list(flat(result))
    chosen = tensors[output] if output < len(tensors) else None
    return chosen.cpu() if isinstance(chosen, Tensor) else None


def _wide(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype

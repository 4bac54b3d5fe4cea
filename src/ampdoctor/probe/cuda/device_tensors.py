"""Which tensors would lie on the device, were the model on CUDA: it matters for those without a dimension.

Next to a half matrix, a CUDA kernel reads a zero-dimensional tensor of the host as a number in float32
(``iter.is_cpu_scalar`` and ``scalar_value<opmath_t>`` in ATen/native/cuda/Loops.cuh); one on the device is
converted to half first, like any operand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from ampdoctor.probe.cuda.autocast_calls import replaced
from ampdoctor.probe.watch.storage_map import StorageMap

_READ_IN_FLOAT32: Mapping[str, tuple[int, ...]] = {
    "add": (0, 1),
    "sub": (0, 1),
    "rsub": (0, 1),
    "mul": (0, 1),
    "div": (1,),
}
"""By base name, the operands whose host scalar is read in float32: CUDALoops.cuh (add and sub are made from
ufuncs), BinaryMulKernel.cu, BinaryDivTrueKernel.cu. Elsewhere ``gpu_kernel_with_scalars`` reads half."""

_FACTORIES = ("tensor", "as_tensor", "scalar_tensor", "full", "ones", "zeros")

_placed: StorageMap[bool] = StorageMap()


def place(tensors: Iterable[Any]) -> None:
    """Nothing; these would lie on the device, and so will what is made of them."""
    for tensor in tensors:
        if isinstance(tensor, Tensor) and has_memory(tensor):
            _placed.put(tensor, True)


def is_placed(tensor: Tensor) -> bool:
    """Whether the tensor would lie on the device."""
    return has_memory(tensor) and _placed.get(tensor) is not None


def read_in_float32(name: str) -> tuple[int, ...]:
    """Positions of the operands that a CUDA kernel reads in float32 where on the host; ``aten::mul_``."""
    return _READ_IN_FLOAT32.get(name.removeprefix("aten::").removeprefix("_foreach_").removesuffix("_"), ())


def has_memory(tensor: Tensor) -> bool:
    """A dense tensor on the CPU without a dispatch of its own."""
    return (
        type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__
        and tensor.layout is torch.strided
        and tensor.is_cpu
        and not tensor.is_nested
    )


@contextmanager
def named_devices_count() -> Iterator[None]:
    """While open, a tensor made with ``device=...`` or moved with ``.to(device)`` is one of the device.

    On a machine without CUDA that device is the host, and the dispatcher does not show that it was named.
    """
    with ExitStack() as undo:
        undo.callback(_placed.clear)
        for name in _FACTORIES:
            undo.enter_context(replaced(torch, name, _noting(getattr(torch, name))))
        undo.enter_context(replaced(Tensor, "to", _noting_target(Tensor.to)))
        yield


def _noting(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def made(*args: Any, **kwargs: Any) -> Tensor:
        result = make(*args, **kwargs)
        if kwargs.get("device") is not None:
            place((result,))
        return result

    return made


def _noting_target(move: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        result = move(self, *args, **kwargs)
        if kwargs.get("device") is not None or _names_a_device(args):
            place((result,))
        return result

    return to


def _names_a_device(args: Sequence[Any]) -> bool:
    return bool(args) and isinstance(args[0], (str, torch.device, Tensor))

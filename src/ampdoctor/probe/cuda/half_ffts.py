"""Runs ``torch.fft`` on half tensors as CUDA does: the CPU's refuses them before anything can be seen.

CUDA hands half to cuFFT, which takes powers of two only and leaves its unscaled sums in half; the norm is
multiplied in afterwards, in half again (ATen/native/cuda/CuFFTPlanCache.h, ATen/native/cuda/SpectralOps.cpp).
What a function does above that is ATen/native/SpectralOps.cpp's. BFloat16 is left to the installed torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from ampdoctor.probe.cuda.dispatcher_kernels import aten_overload, kernels_installed
from ampdoctor.probe.cuda.refusal import EmulatedRefusal
from ampdoctor.probe.cuda.stored_value import Stored

_HALF = (torch.float16, torch.complex32)
_NORMS = {"backward": (0, 2), "ortho": (1, 1), "forward": (2, 0)}
"""A norm -> ``fft_norm_mode`` of a forward and of an inverse transform: 0 none, 1 by root n, 2 by n."""

aten = torch.ops.aten
TRANSFORMS = (aten._fft_c2c.default, aten._fft_r2c.default, aten._fft_c2r.default)
"""What every function of ``torch.fft`` and ``torch.stft`` comes down to."""


def _complex(x: Tensor, norm: int, dims: list[int], sizes: Sequence[int | None], forward: bool) -> Tensor:
    x = _resized(x, dims, sizes)
    result: Tensor = aten._fft_c2c(x if x.is_complex() else x.to(torch.complex32), dims, norm, forward)
    return result


def _one_complex(x: Tensor, norm: int, dims: list[int], sizes: Sequence[int | None], forward: bool) -> Tensor:
    """Of one dimension: a real input needs no complex transform."""
    if x.is_complex():
        return _complex(x, norm, dims, sizes, forward)
    result: Tensor = aten._fft_r2c(_resized(x, dims, sizes), dims, norm, False)
    return result if forward else result.conj()


def _from_real(x: Tensor, norm: int, dims: list[int], sizes: Sequence[int | None], forward: bool) -> Tensor:
    x = _resized(x, dims, sizes)
    result: Tensor = aten._fft_r2c(x, dims if forward else dims[-1:], norm, True)
    if not forward:
        result = result.conj()
        result = aten._fft_c2c(result, dims[:-1], norm, False) if len(dims) > 1 else result
    return result


def _to_real(x: Tensor, norm: int, dims: list[int], sizes: Sequence[int | None], forward: bool) -> Tensor:
    last = sizes[-1] if sizes and sizes[-1] is not None else 2 * (x.shape[dims[-1]] - 1)
    x = _resized(x, dims, [*sizes[:-1], last // 2 + 1])
    x = x if x.is_complex() else x.to(torch.complex32)
    if forward and len(dims) > 1:
        x, dims = aten._fft_c2c(x, dims[:-1], norm, True), dims[-1:]
    result: Tensor = aten._fft_c2r(x.conj() if forward else x, dims, norm, last)
    return result


_Transform = Callable[[Tensor, int, list[int], Sequence[Any], bool], Tensor]
_TRANSFORMS: dict[str, tuple[_Transform, bool]] = {
    "fft_fft": (_one_complex, True),
    "fft_ifft": (_one_complex, False),
    "fft_rfft": (_from_real, True),
    "fft_irfft": (_to_real, False),
    "fft_hfft": (_to_real, True),
    "fft_ihfft": (_from_real, False),
    **{f"fft_{name}{kind}": value for kind in ("2", "n") for name, value in (
        ("fft", (_complex, True)), ("ifft", (_complex, False)), ("rfft", (_from_real, True)),
        ("irfft", (_to_real, False)), ("hfft", (_to_real, True)), ("ihfft", (_from_real, False)),
    )},
}  # fmt: skip
"""By op: what it is made of, and its direction."""


@contextmanager
def half_ffts() -> Iterator[None]:
    """While open, the functions of ``torch.fft`` take half tensors on a CPU, forward and backward."""
    kernels = [
        (name, key, _kernel(op, *made_of))
        for name, made_of in _TRANSFORMS.items()
        if (op := aten_overload(name)) is not None
        for key in ("AutogradCPU", "CPU")
    ]
    with kernels_installed(kernels):
        yield


def _kernel(op: OpOverload, transform: _Transform, forward: bool) -> Callable[..., Tensor]:
    several = op._schema.arguments[1].name == "s"
    default = op._schema.arguments[2].default_value

    def kernel(x: Tensor, size: Any = None, dim: Any = default, norm: str | None = None) -> Tensor:
        if x.dtype not in _HALF or (norm or "backward") not in _NORMS:
            result: Tensor = op._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, x, size, dim, norm)
            return result
        mode = _NORMS[norm or "backward"][not forward]
        dims, sizes = _dimensions(x, size, dim) if several else ([dim % x.ndim], [size])
        return transform(x, mode, dims, sizes, forward)

    return kernel


def _dimensions(
    x: Tensor, sizes: Sequence[int] | None, dims: Sequence[int] | None
) -> tuple[list[int], list[int | None]]:
    if dims is None:
        dims = range(x.ndim - len(sizes), x.ndim) if sizes is not None else range(x.ndim)
    return [d % x.ndim for d in dims], [None if n == -1 else n for n in sizes] if sizes else [None] * len(
        dims
    )


def _resized(x: Tensor, dims: Sequence[int], sizes: Sequence[int | None]) -> Tensor:
    """The signal cut, or filled up with zeros, to the sizes asked for."""
    padding = [0] * (2 * x.ndim)
    for dim, size in zip(dims, sizes, strict=True):
        if size is not None and size < x.shape[dim]:
            x = x.narrow(dim, 0, size)
        elif size is not None and size > x.shape[dim]:
            padding[2 * (x.ndim - 1 - dim) + 1] = size - x.shape[dim]
    return aten.constant_pad_nd(x, padding, 0) if any(padding) else x


def transform_steps(
    store: Stored, func: OpOverload, x: Tensor, dims: list[int], norm: int, last: Any
) -> Tensor:
    """The result of ``_fft_c2c``, ``_fft_r2c`` or ``_fft_c2r`` in float32: cuFFT stores its unscaled sums.

    Raises EmulatedRefusal for sizes that cuFFT does not take in half.
    """
    sizes = [x.shape[d] for d in dims]
    if func is aten._fft_c2r.default and dims:
        sizes[-1] = int(last)
    if any(n & (n - 1) for n in sizes):
        raise EmulatedRefusal(
            "cuFFT only supports dimensions whose sizes are powers of two when computing in half precision, "
            f"but got a signal size of{sizes}"
        )
    sums: Tensor = func(x, dims, 0, last)
    if norm == 0:
        return sums
    points = math.prod(sizes)
    return store(sums) * (1 / (math.sqrt(points) if norm == 1 else points))

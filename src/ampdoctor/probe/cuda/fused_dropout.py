"""``dropout`` as one op, which it is on CUDA: on a CPU it is a draw, a division and a product, each rounded.

``is_fused_kernel_acceptable`` in ATen/native/Dropout.cpp. What is drawn is the same, and so is the op's name
in the reference, if that runs inside as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ampdoctor.probe.cuda.dispatcher_kernels import kernels_installed

aten = torch.ops.aten
_open: list[bool] = []


@contextmanager
def fused_dropout() -> Iterator[None]:
    """While open, ``torch.dropout`` of a floating tensor on a CPU is ``native_dropout``. May be nested."""
    if _open:
        yield
        return
    _open.append(True)
    try:
        with kernels_installed(("dropout", key, _dropout) for key in ("AutogradCPU", "CPU")):
            yield
    finally:
        _open.clear()


def _dropout(x: Tensor, p: float, train: bool) -> Tensor:
    if train and 0 < p < 1 and x.numel() and x.is_floating_point():
        fused: Tensor = aten.native_dropout(x, p, train)[0]
        return fused
    composite: Tensor = aten.dropout.default._op_dk(
        torch._C.DispatchKey.CompositeImplicitAutograd, x, p, train
    )
    return composite

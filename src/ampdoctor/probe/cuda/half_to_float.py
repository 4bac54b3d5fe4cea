"""Softmax from half to float32 in one op, as CUDA has it: the CPU has a cast and an op.

``softmax`` in ATen/native/SoftMax.cpp (and ``log_softmax``): FP16 on CUDA, asked for float32 as autocast
does, is ``_softmax(half_to_float=True)``, whose backward gives half; any other dtype is cast first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

aten = torch.ops.aten
ONE_OP = {"softmax.int": aten._softmax.default, "log_softmax.int": aten._log_softmax.default}
"""Of autocast's ops, what CUDA runs in the place of a cast and an op."""
_FORWARD = tuple(ONE_OP.values())
_BACKWARD = (aten._softmax_backward_data.default, aten._log_softmax_backward_data.default)


def is_one_op(name: str, x: Tensor, dtype: torch.dtype) -> bool:
    """Whether CUDA needs no cast. Only where a mode sees the op, since the CPU's own kernel refuses it."""
    watched = torch._C._len_torch_dispatch_stack() > 0
    return watched and name in ONE_OP and x.dtype is torch.float16 and dtype is torch.float32


def softmax_in_float32(func: OpOverload, args: Sequence[Any]) -> Tensor | None:
    """What the op gives before a rounding, in float32; None for one that does not go from half to float32 or
    back."""
    if func in _FORWARD and args[2]:
        forward: Tensor = func(args[0].to(torch.float32), args[1], False)
        return forward
    if func in _BACKWARD and args[0].dtype is torch.float32 and args[3] is torch.float16:
        backward: Tensor = func(*args[:3], torch.float32)
        return backward
    return None


def widened(func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments without the conversion, which no dtype but half knows."""
    return (*args[:2], False) if func in _FORWARD else args

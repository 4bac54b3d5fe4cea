"""Ops that CUDA computes in several steps, storing what lies between in half: step by step here.

Most ops read half, compute in float32 and round once. Those of ``STEPS`` do not: they are written as several
tensor ops (each stores its result), or their kernel computes in ``scalar_t`` (c10::Half rounds after every
operator). An infinity or a zero of such a step stays one. Each function names its source in ATen/native.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ampdoctor.probe.cuda.added_in_half import index_add, scatter_add, scatter_reduce
from ampdoctor.probe.cuda.stored_value import Stored

_MEAN, _SUM = 1, 2
"""at::Reduction, in ATen/core/Reduction.h."""


def _reduced(loss: Tensor, reduction: int) -> Tensor:
    """``apply_loss_reduction`` of Loss.cpp: over what was stored, in float32."""
    return loss.mean() if reduction == _MEAN else loss.sum() if reduction == _SUM else loss


def _norm(x: Tensor, reduction: int) -> float:
    return 1.0 / x.numel() if reduction == _MEAN and x.numel() else 1.0


def _mse(store: Stored, x: Tensor, target: Tensor, reduction: int = _MEAN) -> Tensor:
    """``mse_kernel_cuda`` in cuda/BinaryMiscOpsKernels.cu: the difference and its square in scalar_t."""
    difference = store(x - target)
    square = difference * difference
    return _reduced(store(square), reduction) if reduction else square


def _mse_backward(store: Stored, gradient: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    """``mse_backward_cuda_kernel`` in cuda/PointwiseOpsKernel.cu: ``alpha * (a - b) * c`` in scalar_t."""
    norm = store.number(2.0 * _norm(x, reduction))
    return store(norm * store(x - target)) * gradient


def _smooth_l1(store: Stored, x: Tensor, target: Tensor, reduction: int = _MEAN, beta: float = 1.0) -> Tensor:
    """``smooth_l1_kernel_cuda``, same file: ``::abs`` of the difference in scalar_t is a float."""
    if beta == 0:  # Loss.cpp takes l1_loss then
        loss = store(x - target).abs()
    else:
        z, b = store(x - target).abs(), store.number(beta)
        loss = torch.where(z < b, 0.5 * z * z / b, z - 0.5 * b)
    return _reduced(store(loss), reduction) if reduction else loss


def _smooth_l1_backward(
    store: Stored, gradient: Tensor, x: Tensor, target: Tensor, reduction: int, beta: float
) -> Tensor:
    """``smooth_l1_backward_cuda_kernel``: all of it in scalar_t."""
    norm, b, z = store.number(_norm(x, reduction)), store.number(beta), store(x - target)
    outside = torch.where(z < 0, -norm, norm) * gradient
    return torch.where(z.abs() > b, outside, store(store(norm * z) * gradient) / b) if b else outside


def _huber(store: Stored, x: Tensor, target: Tensor, reduction: int = _MEAN, delta: float = 1.0) -> Tensor:
    """``huber_kernel_cuda``, as smooth_l1."""
    z, d = store(x - target).abs(), store.number(delta)
    loss = torch.where(z < d, 0.5 * z * z, d * (z - 0.5 * d))
    return _reduced(store(loss), reduction) if reduction else loss


def _huber_backward(
    store: Stored, gradient: Tensor, x: Tensor, target: Tensor, reduction: int, delta: float
) -> Tensor:
    """``huber_backward_cuda_kernel``: all of it in scalar_t."""
    norm, d, z = store.number(_norm(x, reduction)), store.number(delta), store(x - target)
    outside = store(torch.where(z < 0, -norm, norm) * gradient) * d
    return torch.where(z.abs() > d, outside, store(norm * z) * gradient)


def _bce_with_logits(
    store: Stored,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: int = _MEAN,
) -> Tensor:
    """``binary_cross_entropy_with_logits`` in Loss.cpp: tensor ops."""
    log_sigmoid = store(F.logsigmoid(x))
    if pos_weight is not None:
        log_weight = store(store(store(pos_weight - 1) * target) + 1)
        log_sigmoid = store(log_sigmoid * log_weight)
    loss = store(store(1 - target) * x) - log_sigmoid
    if weight is not None:
        loss = store(loss) * weight
    return _reduced(store(loss), reduction) if reduction else loss


def _logsumexp(store: Stored, x: Tensor, dim: Sequence[int], keepdim: bool = False) -> Tensor:
    """``logsumexp_out_impl`` in ReduceOps.cpp: tensor ops, so the sum of the exponentials is stored."""
    if not x.numel():
        return store(store(x.exp()).sum(list(dim), keepdim)).log()
    largest = x.amax(list(dim), True)
    largest = largest.masked_fill(largest.abs() == math.inf, 0)
    kept = largest if keepdim else largest.squeeze(tuple(dim) or tuple(range(x.ndim)))
    total = store(store(store(x - largest).exp()).sum(list(dim), keepdim))
    return store(total.log()) + kept


def _soft_margin(store: Stored, x: Tensor, target: Tensor, reduction: int = _MEAN) -> Tensor:
    """``soft_margin_loss_out`` in Loss.cpp: tensor ops, so the exponential is stored."""
    loss = store(store(-x * target).exp()).log1p()
    return _reduced(store(loss), reduction) if reduction else loss


def _soft_margin_backward(
    store: Stored, gradient: Tensor, x: Tensor, target: Tensor, reduction: int
) -> Tensor:
    """``soft_margin_loss_backward_out``, same file."""
    z = store(store(-target * x).exp())
    numerator = store(store(target * z) * -_norm(x, reduction))
    return store(numerator / store(z + 1)) * gradient


def _convolution(store: Stored, x: Tensor, weight: Tensor, bias: Tensor | None, *how: object) -> Tensor:
    """``_convolution`` in Convolution.cpp: cuDNN's product is stored, then ``output.add_(bias)``.

    PyTorch's own depthwise kernel starts from the bias and rounds once; when it is taken depends on the
    version of cuDNN, and here it is not told apart.
    """
    product: Tensor = torch.ops.aten.convolution.default(x, weight, None, *how)
    if bias is None:
        return product
    return store(product) + bias.reshape(-1, *[1] * (weight.ndim - 2))


def _pow(store: Stored, base: Any, exponent: Any) -> Tensor:
    """``pow_tensor_scalar_kernel`` in cuda/PowKernel.cu: the exponent is kept as scalar_t, and third powers
    and inverse squares are products of scalar_t."""
    if isinstance(base, Tensor) and not isinstance(exponent, (Tensor, complex)):
        exponent = store.number(exponent)
        if exponent == 3:
            return store(base * base) * base
        if exponent == -2:
            return 1 / store(base * base)
    power: Tensor = torch.pow(base, exponent)
    return power


Step = Callable[..., Tensor]
STEPS: Mapping[str, Step] = {
    "aten::mse_loss": _mse,
    "aten::mse_loss_backward": _mse_backward,
    "aten::smooth_l1_loss": _smooth_l1,
    "aten::smooth_l1_loss_backward": _smooth_l1_backward,
    "aten::huber_loss": _huber,
    "aten::huber_loss_backward": _huber_backward,
    "aten::binary_cross_entropy_with_logits": _bce_with_logits,
    "aten::logsumexp": _logsumexp,
    "aten::soft_margin_loss": _soft_margin,
    "aten::soft_margin_loss_backward": _soft_margin_backward,
    "aten::convolution": _convolution,
    "aten::pow": _pow,
    "aten::scatter_add": scatter_add,
    "aten::index_add": index_add,
    "aten::scatter_reduce": scatter_reduce,
}
"""By op: what it does, on float32 tensors with the values of its half arguments, before the last rounding.
The one in place (``pow_``) does the same."""

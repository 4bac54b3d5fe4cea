"""What composite ops leave in half, next to the plain rule in numpy: every step in float64, then rounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ampdoctor.load.workload import Workload
from ampdoctor.probe.passes.one_pass import run_pass
from ampdoctor.probe.passes.precision import candidate
from ampdoctor.probe.plan import Plan
from ampdoctor.probe.watch.unrecorded import Unrecorded

Array = Any
draw = np.random.default_rng(0)
X, Y = (draw.normal(0, 20, (4, 60)).astype(np.float16) for _ in range(2))
P = draw.random((4, 60)).astype(np.float16)
WEIGHTS = np.full(60, 3.3, np.float16)
SIGNAL, WINDOW = draw.normal(0, 1, 16).astype(np.float16), torch.hann_window(8).half().numpy()
INDEX = draw.integers(0, 5, 200)
ADDED = draw.normal(0, 7, 200).astype(np.float16)
FAINT = (np.full(8192, 2.0**-13, np.float16), np.zeros(8192, np.float16))
"""The square of each is a quarter of FP16's smallest number: zero, before 8,192 of them are added up."""
IMAGE, KERNEL = (draw.normal(0, 1, s).astype(np.float16) for s in ((1, 3, 6, 6), (2, 3, 3, 3)))
BIAS = np.array([1000.0, 0.3], np.float16)
SPARSE = np.where(draw.random((8, 16)) < 0.4, draw.normal(0, 9, (8, 16)), 0).astype(np.float16)
DENSE = draw.normal(0, 9, (16, 3)).astype(np.float16)


def half(x: Array) -> Array:
    """Rounded to half, to compute on with in float64."""
    with np.errstate(over="ignore"):
        return np.asarray(x, np.float64).astype(np.float16).astype(np.float64)


def wide(*arrays: Array) -> list[Array]:
    return [a.astype(np.float64) for a in arrays]


def mse(x: Array, y: Array) -> Array:
    return half(half(x - y) ** 2)


def huber(x: Array, y: Array) -> Array:
    z = np.abs(half(x - y))
    return half(np.where(z < 5, 0.5 * z * z, 5 * (z - 2.5)))


def mse_backward(x: Array, y: Array) -> Array:
    """Of a mean times 37, to x and y: the factor 2 / n is a half itself."""
    return half(half(half(2 / x.size) * half(x - y)) * 37)


def huber_backward(x: Array, y: Array) -> Array:
    z, norm = half(x - y), half(1 / x.size)
    return np.where(np.abs(z) > 5, half(half(np.sign(z) * norm * 37) * 5), half(half(norm * z) * 37))


def smooth_l1_backward(x: Array, y: Array) -> Array:
    z, norm = half(x - y), half(1 / x.size)
    return np.where(np.abs(z) > 3, half(np.sign(z) * norm * 37), half(half(half(norm * z) * 37) / 3))


def gradient(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def of(x: Tensor, y: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        (found,) = torch.autograd.grad(loss(x, y) * 37, x)
        return found

    return of


def smooth_l1(x: Array, y: Array) -> Array:
    z = np.abs(half(x - y))
    return half(np.where(z < 2, 0.5 * z * z / 2, z - 1))


def logsumexp(x: Array) -> Array:
    largest = x.max(1, keepdims=True)
    total = half(half(np.exp(half(x - largest))).sum(1))
    return half(half(np.log(total)) + largest[:, 0])


def bce(x: Array, p: Array, w: Array) -> Array:
    log_weight = half(half(half(w - 1) * p) + 1)
    log_sigmoid = half(-np.logaddexp(0, -x))
    return half(half(half(1 - p) * x) - half(log_sigmoid * log_weight))


def soft_margin(x: Array, y: Array) -> Array:
    return half(np.log1p(half(np.exp(half(-x * np.sign(y))))))


def convolution(x: Array, w: Array, b: Array) -> Array:
    return half(half(F.conv2d(torch.from_numpy(x), torch.from_numpy(w)).numpy()) + b.reshape(1, 2, 1, 1))


def added(values: Array, factor: float = 1.0) -> Array:
    total = np.zeros(5)
    for i, value in zip(INDEX, values, strict=True):
        total[i] = half(total[i] + half(value * factor))
    return total


def parts(x: Array) -> Array:
    return half(np.stack([x.real, x.imag], -1))


def inverse(x: Array) -> Array:
    seen = parts(np.fft.rfft(x))
    return half(half(np.fft.irfft(seen[:, 0] + 1j * seen[:, 1]) * 16) / 16)


def short_time(x: Array, window: Array) -> Array:
    frames = half(np.stack([x[i : i + 8] for i in range(0, 9, 4)]) * window)
    return parts(np.fft.rfft(frames, axis=1).T)


def real(x: Tensor) -> Tensor:
    return torch.view_as_real(x.to(torch.complex64))


def steps(f: Callable[..., Any], *given: Array) -> Array:
    return f(*wide(*given))


ROWS: dict[str, tuple[Callable[..., Tensor], tuple[Array, ...], Callable[..., Array]]] = {
    "mse_loss": (lambda x, y: F.mse_loss(x, y, reduction="none"), (X, Y), mse),
    "mean of mse_loss": (F.mse_loss, (X, Y), lambda x, y: half(mse(x, y).mean())),
    "mse_loss, backward": (gradient(F.mse_loss), (X, Y), mse_backward),
    "huber_loss": (lambda x, y: F.huber_loss(x, y, reduction="none", delta=5.0), (X, Y), huber),
    "sum of faint mse_loss": (lambda x, y: F.mse_loss(x, y, reduction="sum"), FAINT, lambda x, y: half(0)),
    "sum of faint huber_loss": (
        lambda x, y: F.huber_loss(x, y, reduction="sum", delta=5.0),
        FAINT,
        lambda x, y: half(0),
    ),
    "sum of faint smooth_l1_loss": (
        lambda x, y: F.smooth_l1_loss(x, y, reduction="sum", beta=2.0),
        FAINT,
        lambda x, y: half(0),
    ),
    "huber_loss, backward": (gradient(lambda x, y: F.huber_loss(x, y, delta=5.0)), (X, Y), huber_backward),
    "smooth_l1_loss": (lambda x, y: F.smooth_l1_loss(x, y, reduction="none", beta=2.0), (X, Y), smooth_l1),
    "smooth_l1_loss, backward": (
        gradient(lambda x, y: F.smooth_l1_loss(x, y, beta=3.0)),
        (X, Y),
        smooth_l1_backward,
    ),
    "logsumexp": (lambda x: x.logsumexp(1), (X,), logsumexp),
    "binary_cross_entropy_with_logits": (
        lambda x, p, w: F.binary_cross_entropy_with_logits(x, p, pos_weight=w, reduction="none"),
        (X, P, WEIGHTS),
        bce,
    ),
    "soft_margin_loss": (lambda x, y: F.soft_margin_loss(x, y.sign(), reduction="none"), (X, Y), soft_margin),
    "convolution and bias": (F.conv2d, (IMAGE, KERNEL, BIAS), convolution),
    "third power": (lambda x: x**3, (X,), lambda x: half(half(x * x) * x)),
    "inverse square": (lambda x: x**-2, (X,), lambda x: half(1 / half(x * x))),
    "power of 0.3": (lambda x: x.abs() ** 0.3, (X,), lambda x: half(np.abs(x) ** half(0.3))),
    "scatter_add_": (
        lambda v: torch.zeros(5, dtype=v.dtype, device=v.device).scatter_add_(0, torch.from_numpy(INDEX), v),
        (ADDED,),
        added,
    ),
    "index_add_": (
        lambda v: torch.zeros(5, dtype=v.dtype).index_add_(0, torch.from_numpy(INDEX), v, alpha=0.7),
        (ADDED,),
        lambda v: added(v, 0.7),
    ),
    "fft": (
        lambda x: real(torch.fft.fft(x, norm="ortho")),
        (SIGNAL,),
        lambda x: half(parts(np.fft.fft(x)) / 4),
    ),
    "irfft": (lambda x: torch.fft.irfft(torch.fft.rfft(x)), (SIGNAL,), inverse),
    "stft": (
        lambda x, w: real(torch.stft(x, 8, 4, window=w, center=False, return_complex=True)),
        (SIGNAL, WINDOW),
        short_time,
    ),
    "sparse CSR product": (lambda a, b: a.to_sparse_csr() @ b, (SPARSE, DENSE), lambda a, b: half(a @ b)),
    "cumsum": (lambda x: x.cumsum(1), (X,), lambda x: half(np.cumsum(x.astype(np.float32), 1))),
}  # fmt: skip


@pytest.mark.parametrize("name", list(ROWS))
@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:ComplexHalf")
def test_every_step_that_cuda_stores_is_rounded(name: str) -> None:
    op, arrays, expected = ROWS[name]
    made: list[Tensor] = []

    class Applies(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, tensors: list[Tensor]) -> Tensor:
            made.append(op(*tensors))
            return self.weight.sum()

    batch = [torch.from_numpy(a) for a in arrays]
    workload = Workload("test", Applies(), (batch,), lambda m, b: m(b))
    precision = candidate(Plan(device="cpu", mode="none"), torch.device("cpu"), 1.0)
    run = run_pass(workload, batch, precision, 0, Unrecorded)
    assert run.raised is None, run.raised
    assert np.array_equal(made[0].double().numpy(), steps(expected, *arrays))

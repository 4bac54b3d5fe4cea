"""Ops that store half inside, as CUDA does; and FFTs in half, which a CPU refuses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ampdoctor.probe.cuda.on_cpu import EmulatedRefusal, cuda_autocast_policy, run_like_cuda
from case_runner import run_case, scan
from half_ops import LikeCuda, half

aten = torch.ops.aten
INF = math.inf


def value(func: Any, *args: Any) -> float:
    """A loss of one number as CUDA gives it."""
    return float(run_like_cuda(func, args, {}).outputs)


# --- what lies between overflows or is flushed, and the result does not -----------------------------------


def test_the_square_inside_mse_overflows_though_the_mean_is_90() -> None:
    x = torch.zeros(1000).half()
    x[17] = 300.0
    result = run_like_cuda(aten.mse_loss.default, (x, torch.zeros(1000).half()), {})
    assert float(result.outputs) == INF
    assert result.stored[-1].isinf().nonzero().tolist() == [[17]]


def test_mse_s_backward_multiplies_by_2_over_n_before_the_loss_scale_comes_in() -> None:
    n = 2**17  # 2^-16 x 2^-10 is flushed, whatever it is multiplied with then
    x = torch.full((n,), 2.0**-10).half()
    args = half(1024.0)[0], x, torch.zeros(n).half(), 1
    assert run_like_cuda(aten.mse_loss_backward.default, args, {}).outputs.count_nonzero() == 0
    args = half(1024.0)[0], 4 * x, torch.zeros(n).half(), 1
    assert run_like_cuda(aten.mse_loss_backward.default, args, {}).outputs.unique().tolist() == [2.0**-14]


@pytest.mark.parametrize("loss", [aten.huber_loss.default, aten.smooth_l1_loss.default])
def test_the_difference_inside_is_stored(loss: Any) -> None:
    assert value(loss, half(40000.0), half(-40000.0), 1, 0.125) == INF  # huber: 10,000; smooth L1: 80,000
    assert value(loss, half(2050.0), half(1.0), 1, 0.125) == value(loss, half(2048.0), half(0.0), 1, 0.125)


def test_a_weighted_element_of_binary_cross_entropy_overflows_though_the_mean_is_90() -> None:
    x, target = torch.zeros(1000).half(), torch.zeros(1000).half()
    x[0], target[0] = -300.0, 1.0
    assert value(aten.binary_cross_entropy_with_logits.default, x, target, None, half(300.0), 1) == INF
    assert value(aten.binary_cross_entropy_with_logits.default, x, target, None, half(200.0), 1) < 61


def test_the_sum_of_exponentials_inside_logsumexp_overflows_past_65519_equal_elements() -> None:
    assert value(aten.logsumexp.default, torch.zeros(65519).half(), [0]) == half(math.log(65504)).item()
    assert value(aten.logsumexp.default, torch.zeros(65520).half(), [0]) == INF


def test_logsumexp_of_declared_infinities_is_one() -> None:
    assert value(aten.logsumexp.default, half(-INF, -INF), [0]) == -INF


def test_the_exponential_inside_the_soft_margin_loss_overflows_past_11() -> None:
    loss = aten.soft_margin_loss.default
    assert value(loss, half(-11.0), half(1.0), 1) == 11.0
    assert value(loss, half(-12.0), half(1.0), 1) == INF


def test_a_convolution_s_product_is_stored_before_the_bias_is_added() -> None:
    x, weight, bias = half(256.0).reshape(1, 1, 1), half(256.0).reshape(1, 1, 1), half(-1024.0)
    result = run_like_cuda(aten.convolution.default, (x, weight, bias, [1], [0], [1], False, [0], 1), {})
    assert result.outputs.tolist() == [[[INF]]]  # 64,512 in exact arithmetic


@pytest.mark.parametrize(
    "loss",
    [
        F.mse_loss,
        F.smooth_l1_loss,
        F.huber_loss,
        F.binary_cross_entropy_with_logits,
        F.soft_margin_loss,
        lambda x, y: F.binary_cross_entropy_with_logits(x, y, weight=y.abs(), pos_weight=y.abs() + 1),
        lambda x, y: F.smooth_l1_loss(x, y, beta=0.0),
        lambda x, y: torch.logsumexp(x, (0, 1)) + torch.logsumexp(y, 0, keepdim=True).sum(),
        lambda x, y: F.huber_loss(x, y, reduction="sum", delta=0.5),
        lambda x, y: F.mse_loss(x, y, reduction="none").sum(),
    ],
)
def test_step_by_step_is_float32_up_to_rounding(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(5, 7, generator=generator).half().requires_grad_() for _ in range(2))
    with LikeCuda():
        result = loss(x, y.detach())
        result.backward()
    wide = x.detach().float().requires_grad_()
    expected = loss(wide, y.detach().float())
    expected.backward()
    assert result.dtype is torch.float16
    torch.testing.assert_close(result.float(), expected, rtol=4e-3, atol=4e-3)
    torch.testing.assert_close(x.grad.float(), wide.grad, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr"])
def test_a_sparse_product_is_computed_in_float32_and_rounded_once(layout: str) -> None:
    rows, x = half(256.0, 256.0).reshape(1, 2), half(256.0, -255.0).reshape(2, 1)
    x.requires_grad_()
    with LikeCuda():
        result = getattr(rows, layout)() @ x
        result.sum().backward()
    assert result.tolist() == [[256.0]]  # 65,536 - 65,280
    assert x.grad.tolist() == [[256.0], [256.0]]


# --- FFT ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
@pytest.mark.parametrize("form", ["", "2", "n"])
def test_a_transform_in_half_is_that_of_float32_up_to_rounding(name: str, form: str, norm: str) -> None:
    transform = getattr(torch.fft, name + form)
    n = 9 if name in ("irfft", "hfft") else 8  # half of 16 points, and one
    x = torch.randn(2, 4, n, generator=torch.Generator().manual_seed(0)).half().requires_grad_()
    options = {"dim": (1, 2)} if form else {}
    with cuda_autocast_policy(), LikeCuda():
        result = transform(x, norm=norm, **options)
        (
            torch.view_as_real(result.resolve_conj()) if result.is_complex() else result
        ).square().sum().backward()
    wide = x.detach().float().requires_grad_()
    expected = transform(wide, norm=norm, **options)
    (
        torch.view_as_real(expected.resolve_conj()) if expected.is_complex() else expected
    ).square().sum().backward()
    assert result.dtype is (torch.complex32 if expected.is_complex() else torch.float16)
    torch.testing.assert_close(result.to(expected.dtype), expected, rtol=1e-2, atol=1e-2)
    scale = float(wide.grad.abs().max())
    torch.testing.assert_close(x.grad.float() / scale, wide.grad / scale, rtol=1e-2, atol=1e-2)


def test_a_signal_is_cut_and_filled_up_as_in_float32() -> None:
    x = torch.arange(6.0).half()
    with cuda_autocast_policy(), LikeCuda():
        for n in (4, 8):
            result = torch.fft.rfft(x, n)
            torch.testing.assert_close(
                result.to(torch.complex64), torch.fft.rfft(x.float(), n), rtol=1e-3, atol=1e-2
            )


def test_the_sums_are_stored_before_the_norm_is_multiplied_in() -> None:
    x = torch.full((128,), 1000.0).half()  # 128,000; 11,314 with norm="ortho"
    with cuda_autocast_policy(), LikeCuda():
        assert torch.fft.rfft(x, norm="ortho")[0].real.item() == INF
        assert torch.fft.rfft(x / 2, norm="ortho")[0].real.item() == 5656.0


@pytest.mark.parametrize(
    "transform",
    [
        torch.fft.fft,
        lambda x: torch.stft(x, 12, window=torch.ones(12).half(), return_complex=True),
    ],
)
def test_other_sizes_than_powers_of_two_are_refused_with_cuda_s_reason(transform: Any) -> None:
    with cuda_autocast_policy(), LikeCuda(), pytest.raises(EmulatedRefusal, match=r"powers of two.*of\[12\]"):
        transform(torch.ones(12).half())


def test_a_short_time_transform_of_half_runs() -> None:
    with cuda_autocast_policy(), LikeCuda():
        result = torch.stft(torch.ones(32).half(), 16, window=torch.ones(16).half(), return_complex=True)
    assert result.dtype is torch.complex32
    assert result[0].real.unique().tolist() == [16.0]


def test_the_case_on_20_points_raises_with_that_reason() -> None:
    report = run_case("fno_fft")
    assert report.verdict == "raises"
    assert any("powers of two" in finding.message for finding in report.findings)


# --- in a report -------------------------------------------------------------------------------------------


def test_the_sample_whose_square_overflows_is_named() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    x = torch.ones(8, 1)
    x[3] = 300.0

    def step(model: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(model(batch), torch.zeros(8, 1).half())

    _, report = scan(model, x, step, mode="half")
    assert report.verdict == "forward-overflow"
    assert report.first_fault is not None
    assert report.first_fault.samples == (3,)

"""Finite and wrong: the op at which values part from FP32 is found, and healthy models are left in peace."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ampdoctor.diagnose.report import Finding, Report
from ampdoctor.probe.births.drift import _sample
from ampdoctor.scales.gradient_harm import without_noise
from case_runner import candidate, scan, warnings_of


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x


def report_of(step: object, x: Tensor, **plan: object) -> Report:
    return scan(Scaled(), x, step, mode="half", loss_scale=1.0, **plan)[1]  # type: ignore[arg-type]


def the_drift(report: Report) -> Finding:
    assert report.verdict == "drift"
    (finding,) = [f for f in report.findings if f.code == "AMP108"]
    return finding


def angle(model: nn.Module, x: Tensor) -> Tensor:
    return torch.sin(model(x) * 100).float().square().mean()


def test_a_periodic_function_of_a_large_number() -> None:
    """Near 4,000 FP16 has multiples of 2 only: the angle errs by up to 1 radian, and by what 40.01 lost."""
    finding = the_drift(report_of(angle, torch.tensor([[40.01, 40.02, 40.04, 40.05]])))
    assert (finding.op, finding.evidence["kind"]) == ("aten::sin", "large-argument")
    assert finding.source is not None
    assert "torch.sin" in finding.source.text
    assert finding.evidence["input_error"] < 1e-3 < 0.05 < finding.evidence["relative_error"]["output"]


def test_the_same_function_of_a_small_number_is_left_in_peace() -> None:
    report = report_of(angle, torch.tensor([[0.001, 0.002, 0.004, 0.005]]))
    assert (report.verdict, warnings_of(report)) == ("clean", [])


def test_a_difference_of_nearly_equal_numbers() -> None:
    """From 2,048 on FP16 has even numbers only: 2,049.1 to 2,050.9 are 2,050, and 2 is left of each."""

    def left(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        return ((y + 2048) - 2048).float().square().mean()

    finding = the_drift(report_of(left, torch.tensor([[1.1, 1.2, 1.3, 2.9]])))
    assert (finding.op, finding.evidence["kind"]) == ("aten::sub", "difference")


def test_a_mean_behind_it_is_not_to_blame() -> None:
    """The sines have both signs: their mean is further off than they are, and they are off already."""

    def step(model: nn.Module, x: Tensor) -> Tensor:
        y = torch.sin(model(x) * 100).float()
        return y.square().mean() + 5 * y.mean()

    finding = the_drift(report_of(step, torch.tensor([[40.01, 40.02, 40.04, 40.05]])))
    assert (finding.op, finding.evidence["kind"]) == ("aten::sin", "large-argument")


def test_a_sum_in_a_loop_that_stands_still() -> None:
    """At 512 FP16 moves in steps of 0.5: of 640 quarters none arrives, 160 of 672 in all."""

    def step(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        total = y * 512
        for _ in range(640):
            total = total + y / 4
        return total.float().mean()

    finding = the_drift(report_of(step, torch.ones(1, 4)))
    assert (finding.op, finding.evidence["kind"]) == ("aten::add", "running-sum")
    assert finding.evidence["relative_error"]["output"] == pytest.approx(160 / 672)
    assert finding.evidence["input_error"] == pytest.approx(0.25 / 512.25)
    assert finding.source is not None and "total + y / 4" in finding.source.text


def test_a_stream_that_is_made_from_itself_is_no_such_sum() -> None:
    def step(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        for _ in range(64):
            y = y + y / 64
        return y.float().mean()

    report = report_of(step, torch.ones(1, 4))
    assert (report.verdict, warnings_of(report)) == ("clean", [])


def test_gradients_that_such_a_forward_zeroes_are_not_blamed_on_the_scale() -> None:
    """2,048.6 and 2,048.7 are 2,048: nothing is left of them, nor of their gradient, at any loss scale."""

    def left(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        return ((y + 2048) - 2048).float().square().mean()

    finding = the_drift(report_of(left, torch.tensor([[0.6, 1.2, 0.7, 1.3]])))
    assert finding.evidence["kind"] == "difference"


@pytest.mark.parametrize("mode", ["autocast", "half"])
def test_a_loss_that_cancels_by_itself_is_no_drift(mode: str) -> None:
    """A weight orthogonal to the sum of the samples: the outputs add up to zero, and what is left of them in
    any precision is their rounding. The gradient is that sum, and right."""
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    critic = nn.Linear(8, 1, bias=False)
    total = x.sum(0)
    with torch.no_grad():
        critic.weight -= (critic.weight @ total) / (total @ total) * total
    trace, report = scan(critic, x, lambda m, b: m(b).sum(), mode=mode, loss_scale=1.0)
    (drift,) = trace.drifts
    assert (drift.kind, drift.scalar, drift.error > 0.2) == ("long-sum", True, True)
    assert report.verdict == "clean"


def test_outputs_are_compared_without_a_loss() -> None:
    def outputs(model: nn.Module, x: Tensor) -> Tensor:
        return torch.cos(model(x) * 100)

    report = report_of(outputs, torch.tensor([[40.01, 40.02, 40.04, 40.05]]), forward_only=True)
    finding = the_drift(report)
    assert finding.evidence["output_error"] > 0.2
    assert "outputs are off by" in report.sentence


class Swapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


@pytest.mark.parametrize("cleared", [False, True])
def test_a_cast_of_a_weight_that_was_changed_since(cleared: bool) -> None:
    """Within one autocast region the second call still multiplies by the weight as it was before."""

    def twice(model: Swapped, x: Tensor) -> Tensor:
        first = model(x)
        with torch.no_grad():
            model.inner.weight.data.mul_(-2)
        if cleared:
            torch.clear_autocast_cache()
        loss = (first - model(x)).float().square().mean()
        with torch.no_grad():
            model.inner.weight.data.div_(-2)
        return loss

    torch.manual_seed(0)
    _, report = scan(Swapped(), torch.randn(3, 4), twice, loss_scale=1.0)  # type: ignore[arg-type]
    if cleared:
        assert (report.verdict, warnings_of(report)) == ("clean", [])
        return
    finding = the_drift(report)
    assert finding.evidence["kind"] == "stale-cast"
    assert finding.evidence["weight"] == "inner.weight"
    assert finding.source is not None
    assert "mul_(-2)" in finding.source.text
    assert "clear_autocast_cache" in finding.remedy


def test_a_choice_that_rounding_turns_over_is_no_drift() -> None:
    """1.0001 and 1.0002 are the same number in FP16: argmax takes another of them, and nothing is wrong."""

    def best(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        table = torch.tensor([1.0, -5.0, 3.0, 9.0], dtype=y.dtype)
        return table[y.argmax(-1)].float().mean() + 0 * y.float().sum()

    report = report_of(best, torch.tensor([[1.0001, 1.0002, 0.5, 0.5]]))
    assert (report.verdict, warnings_of(report)) == ("clean", [])


def test_two_passes_that_differ_by_themselves_are_not_called_drift() -> None:
    calls = [0]

    def noisy(model: nn.Module, x: Tensor) -> Tensor:
        calls[0] += 1
        return (model(x).float() * calls[0]).square().mean()

    report = report_of(noisy, torch.ones(1, 4))
    assert report.verdict != "drift"


def test_a_sample_of_a_padded_image_sees_more_than_its_margin() -> None:
    """Each image is one pixel in a margin of zeros: of every ninth element the first is always a zero."""
    images = torch.nn.functional.pad(torch.arange(1.0, 4097.0).reshape(4096, 1, 1), (1, 1, 1, 1))
    sample = _sample(images)
    assert len(sample) == 4096
    assert 0.09 < float((sample != 0).float().mean()) < 0.13


class Thin(nn.Module):
    """Batch statistics of a few values, layer after layer: each divides by what they happen to vary."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        layers = [(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU()) for _ in range(12)]
        self.body = nn.Sequential(*(module for layer in layers for module in layer), nn.Linear(32, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)  # type: ignore[no-any-return]


def test_a_model_that_magnifies_any_rounding_is_no_drift() -> None:
    """FP32 errs against float64 as BF16 against FP32, but for the 2^16 that it rounds finer: no fault."""
    x = torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
    trace, report = scan(
        Thin(), x, lambda m, b: m(b).float().logsumexp(-1).mean(), dtype="bfloat16", loss_scale=1.0
    )
    errors = [(p.relative_error or 0.0) for p in without_noise(candidate(trace).parameters)]
    assert max(errors) > 1.0
    assert (report.verdict, warnings_of(report)) == ("clean", [])


class RebuildsItsInput(torch.autograd.Function):
    """x^2, with x + 1024 kept for backward instead of x: FP16 keeps whole numbers there."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x + 1024)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (kept,) = ctx.saved_tensors
        return gradient * 2 * (kept - 1024)


def test_a_backward_that_rebuilds_its_input_is_named_at_its_line() -> None:
    """1.4, 1.6 and 0.6 come back as 1, 2 and 1. FP32 errs alike, 2^13 times less: the line is at fault."""
    x = torch.tensor([[1.4, 1.4, 1.6, 0.6]])
    report = report_of(lambda m, b: RebuildsItsInput.apply(m(b)).float().mean(), x)
    assert report.verdict == "drift"
    (finding,) = [f for f in report.findings if f.code == "AMP206"]
    assert (finding.op, finding.evidence["begins"]["kind"]) == ("aten::sub", "difference")
    assert finding.source is not None
    assert "kept - 1024" in finding.source.text


def test_the_mean_of_what_is_normalised_is_zero_and_begins_nothing() -> None:
    """A normalisation of a normalisation: the second mean is rounding, and what is really off lies behind."""
    torch.manual_seed(0)

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LayerNorm(64), nn.LayerNorm(64)
            self.scale = nn.Parameter(torch.ones(64))

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.second(self.first(x)) * self.scale
            return ((y + 2048) - 2048).float()

    finding = the_drift(
        scan(Twice(), torch.randn(4, 64), lambda m, x: m(x).square().mean(), mode="half", loss_scale=1.0)[1]
    )
    assert (finding.op, finding.evidence["kind"]) == ("aten::sub", "difference")

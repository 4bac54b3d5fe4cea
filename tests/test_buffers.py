"""State that carries a fault to the next step: buffers that a pass leaves non-finite."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ampdoctor.probe.passes.buffers import compare_buffers
from case_runner import candidate, scan, warnings_of


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


def squared(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x).float() - 1).square().mean()


def test_a_running_variance_that_leaves_the_range() -> None:
    """Of +-2,000 the unbiased variance is 4e6 * 4/3; a tenth of it, the momentum, is 5.3e5: inf in FP16."""
    x = torch.tensor([[2000.0], [-2000.0], [2000.0], [-2000.0]])
    trace, report = scan(Normed(), x, squared, mode="half", loss_scale=1.0)
    (variance,) = [b for b in candidate(trace).buffers if b.name == "norm.running_var"]
    assert (variance.nonfinite, variance.nonfinite_here_only) == (1, 1)
    fault = report.first_fault
    assert fault is not None
    assert report.verdict == "forward-overflow"
    assert (fault.module, fault.reaches_loss, fault.spoils_buffers) == ("norm", False, ("norm.running_var",))
    assert any("read by the next step" in finding.message for finding in report.findings)


def test_a_running_variance_within_the_range_is_left_in_peace() -> None:
    x = torch.tensor([[20.0], [-20.0], [20.0], [-20.0]])
    _, report = scan(Normed(), x, squared, mode="half", loss_scale=1.0)
    assert (report.verdict, warnings_of(report)) == ("clean", [])


class History(nn.Module):
    """Keeps 448 / max|x| of the last two steps, as FP8 training does; half where the model is half."""

    def __init__(self, floor: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.floor = floor
        self.register_buffer("scales", torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.weight * x
        with torch.no_grad():
            new = 448 / y[:, :1].abs().amax().clamp(min=self.floor)
            self.scales = torch.stack((self.scales[1], new))
        return y


@pytest.mark.parametrize(("floor", "verdict"), [(1e-3, "forward-overflow"), (1.0, "clean")])
def test_a_buffer_that_is_replaced(floor: float, verdict: str) -> None:
    """448 / 1e-3 is 448,000: past 65,504. The loss does not see it."""
    x = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    _, report = scan(History(floor), x, squared, mode="half", loss_scale=1.0)
    assert report.verdict == verdict
    if verdict != "clean":
        assert report.first_fault is not None
        assert report.first_fault.spoils_buffers == ("scales",)


def test_a_buffer_that_fp32_spoils_as_well_is_no_matter_of_precision() -> None:
    """0 / 0 goes into the buffer in every precision, and neither loss nor gradients suffer."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))
            self.register_buffer("mean", torch.zeros(2))

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.mean.copy_(x.sum(0) / torch.zeros_like(x[0]))
            return self.weight * x

    _, report = scan(Both(), torch.zeros(2, 2), squared, mode="half", loss_scale=1.0)
    assert (report.verdict, warnings_of(report)) == ("clean", [])


class SecondMoment(nn.Module):
    """Keeps the mean square of what a layer gives, and of its difference from what it was given."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.layer.weight, weight)
        self.register_buffer("square", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        with torch.no_grad():
            self.square.copy_((y.detach() * y.detach()).mean())
        return y


def test_a_finite_buffer_that_is_far_off() -> None:
    """(2^-13)^2 is 2^-26, which FP16 rounds to zero: the loss does not see it, the next step would."""
    trace, report = scan(SecondMoment(2.0**-13), torch.ones(4, 1), squared, loss_scale=1.0)
    (state,) = candidate(trace).buffers
    assert (state.relative_error, state.reference_error) == (1.0, 0.0)
    assert report.verdict == "drift"
    (finding,) = (f for f in report.findings if f.code == "AMP108")
    assert (finding.op, finding.source and finding.source.function) == ("aten::mul", "forward")
    assert "The buffer square, read by the next step, is off by 100.0 %." in finding.message


def test_a_finite_buffer_that_is_as_near_as_rounding_lets_it_be() -> None:
    """(2^-12)^2 is 2^-24, FP16's smallest number."""
    _, report = scan(SecondMoment(2.0**-12), torch.ones(4, 1), squared, loss_scale=1.0)
    assert (report.verdict, warnings_of(report)) == ("clean", [])


class Centred(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 1)
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        with torch.no_grad():
            self.mean.copy_((y - y[torch.arange(len(y)).roll(1)] * 1.0001).mean())
        return y


def test_a_mean_near_zero_is_far_off_by_itself() -> None:
    """It is the rounding of its own sum, in FP32 as well: 1.0001 is 1 in FP16."""
    torch.manual_seed(0)
    trace, report = scan(Centred(), torch.randn(64, 16), squared, loss_scale=1.0)
    (state,) = candidate(trace).buffers
    assert state.relative_error is not None and state.relative_error > 0.2
    assert (report.verdict, warnings_of(report)) == ("clean", [])


def test_a_running_mean_is_far_off_beside_its_deviation_only() -> None:
    """A mean of 1e-6 beside a deviation of 1 may be off by all of itself; one of 1 may not."""
    kept = {"bn.running_mean": torch.full((4,), 1e-6), "bn.running_var": torch.ones(4)}
    (mean,) = compare_buffers({"bn.running_mean": torch.zeros(4)}, kept, frozenset(kept))
    assert mean.relative_error == pytest.approx(1e-6)
    kept["bn.running_mean"] = torch.ones(4)
    (mean,) = compare_buffers({"bn.running_mean": torch.zeros(4)}, kept, frozenset(kept))
    assert mean.relative_error == 1.0

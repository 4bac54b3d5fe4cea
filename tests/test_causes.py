"""Why a value was born bad, on real models: one op with several causes, differences, the user's own casts."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ampdoctor.diagnose.report import Report
from case_runner import codes, scan, warnings_of


class Plain(nn.Module):
    """One weight of one, so that the input arrives where a test wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x


def report_of(step: object, x: Tensor, **plan: object) -> Report:
    return scan(Plain(), x, step, loss_scale=1.0, **plan)[1]  # type: ignore[arg-type]


# ---------------------------------------------------------------- one op, several causes


def log_of_the_rest(model: nn.Module, x: Tensor) -> Tensor:
    """-log(1 - p): p = 1 is undefined for everyone, 1 - 1e-5 is 1 in FP16 only."""
    return -torch.log(1 - model(x)).float().sum()


def test_an_element_that_fails_in_fp32_too_decides_for_its_op() -> None:
    report = report_of(log_of_the_rest, torch.tensor([1 - 1e-5, 0.5, 1.0]), mode="half")
    fault = report.first_fault
    assert fault is not None
    assert report.verdict == "forward-undefined"
    assert fault.fp32_also_fails
    assert fault.index == (2,)
    assert "FP32 is fine" not in report.sentence


def test_without_it_the_other_element_is_a_matter_of_precision() -> None:
    report = report_of(log_of_the_rest, torch.tensor([1 - 1e-5, 0.5, 0.25]), mode="half")
    assert report.verdict == "forward-underflow"
    assert report.first_fault is not None
    assert report.first_fault.index == (0,)
    assert "FP32 is fine" in report.sentence


# ---------------------------------------------------------------- the root or logarithm of a difference


def spread(model: nn.Module, x: Tensor) -> Tensor:
    """The root of E[x^2] - E[x]^2."""
    y = model(x)
    return torch.sqrt(y.square().mean() - y.mean().square()).float()


def test_a_difference_that_rounding_makes_negative_is_no_flush() -> None:
    """In FP16 the squares of 16, 16 and 16 + 2^-5 are 256, 256 and 257 (steps of 1/4), their mean 256.25; the
    mean of the three is 16 + 2^-6, whose square is 256.5: the difference is -0.25, exactly 2.2e-4."""
    x = torch.tensor([16.0, 16.0, 16.0 + 2**-5])
    report = report_of(spread, x, mode="half")
    fault = report.first_fault
    assert fault is not None
    assert (report.verdict, fault.cause) == ("forward-underflow", "cancellation")
    assert not fault.fp32_also_fails
    (finding,) = [f for f in report.findings if f.code == "AMP104"]
    assert "sqrt is given -0.25" in finding.message
    assert "zero" not in finding.message
    assert "difference" in finding.remedy


def test_a_difference_that_is_negative_in_fp32_too_is_its_formula() -> None:
    report = report_of(lambda model, x: torch.sqrt(model(x) - 2).float().sum(), torch.ones(2), mode="half")
    assert report.verdict == "forward-undefined"
    assert codes(report) >= {"AMP102"}


# ---------------------------------------------------------------- the user's own half region


def own_half(model: nn.Module, x: Tensor) -> Tensor:
    h = model(x).half()
    h = h * 1000
    return h.float().square().mean()


def test_an_overflow_in_a_region_the_user_made_half_is_one_of_range() -> None:
    """100 * 1,000 is past 65,504, in the FP32 run as well, since the model casts for itself."""
    report = report_of(own_half, torch.full((2,), 100.0))
    fault = report.first_fault
    assert fault is not None
    assert (report.verdict, fault.cause, fault.exact_value) == ("forward-overflow", "range", 100_000.0)
    assert fault.fp32_also_fails  # of the model as written
    assert "no matter of precision" not in report.sentence
    assert "FP32 is fine" not in report.sentence


def test_the_same_region_within_its_range_is_left_in_peace() -> None:
    report = report_of(own_half, torch.full((2,), 0.01))
    assert (report.verdict, warnings_of(report)) == ("clean", [])


# ---------------------------------------------------------------- a silent fault beside a loud one


def silent(model: nn.Module, x: Tensor) -> Tensor:
    """A norm whose square overflows (300^2 = 90,000) and makes the output zero: a finite, wrong loss."""
    y = model(x)
    normed = y * torch.rsqrt((y * y).mean() + 1e-6)
    return (normed.float() - 3).square().mean()


def test_a_wrong_loss_comes_before_an_overflow_of_backward() -> None:
    """The loss is (0 - 3)^2 = 9 instead of (1 - 3)^2 = 4, and 2^17 is too much for its gradient."""
    report = scan(Plain(), torch.full((4,), 300.0), silent, mode="half", loss_scale=2.0**17)[1]
    fault = report.first_fault
    assert fault is not None
    assert (report.verdict, fault.phase, fault.exact_value) == ("forward-overflow", "forward", 90_000.0)
    assert not any("agree" in finding.message for finding in report.findings)


def test_agreement_is_said_only_where_it_was_compared() -> None:
    """An infinity that is absorbed without harm: 1 / inf is 0, next to a term of one."""

    def harmless(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        return (1 + 1 / (y * y)).float().mean() + y.float().mean() * 0.01

    report = report_of(harmless, torch.full((4,), 300.0), mode="half")
    assert report.verdict == "clean"
    (finding,) = [f for f in report.findings if f.code == "AMP101"]
    assert finding.severity == "info"
    assert "loss and gradients agree with FP32's" in finding.message


# ---------------------------------------------------------------- a mask's infinity stops no search


def attention(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    scores = model(batch["x"]) + batch["mask"]
    return (scores.softmax(-1) * batch["value"]).float().sum()


def test_a_mask_in_the_batch_does_not_stop_the_search() -> None:
    """The gradient of the softmax is value * scale: 3 * 2^14 fits, 3 * 2^15 does not."""
    batch = {
        "x": torch.tensor([[0.0, 1.0, 2.0]]),
        "mask": torch.tensor([[0.0, 0.0, -math.inf]]),
        "value": torch.tensor([[1.0, 2.0, 3.0]]),
    }
    report = scan(Plain(), batch, attention, mode="half", loss_scale=2.0**17)[1]  # type: ignore[arg-type]
    assert report.verdict == "backward-overflow"
    assert report.loss_scale.searched
    assert report.loss_scale.ceiling == 2.0**14


# ---------------------------------------------------------------- a reference that cannot run as written


class Mixed(nn.Module):
    """Its own .half() meets FP32 weights: autocast matches them, an FP32 run raises."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.inner, self.outer, self.factor = nn.Linear(2, 2), nn.Linear(2, 1), factor
        nn.init.ones_(self.inner.weight), nn.init.zeros_(self.inner.bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.outer(self.inner(x).half() * self.factor)
        return out


def mixed(factor: float) -> Report:
    step = lambda model, x: model(x).float().square().mean()  # noqa: E731
    return scan(Mixed(factor), torch.ones(3, 2), step, loss_scale=1.0)[1]


def test_a_reference_that_raises_is_run_with_the_models_casts_widened() -> None:
    """1 + 1 = 2, times 40,000: 80,000 in FP32, past the end of FP16."""
    report = mixed(40_000.0)
    fault = report.first_fault
    assert fault is not None
    assert (report.verdict, fault.exact_value, fault.reference_value) == ("forward-overflow", 80_000, 80_000)
    (finding,) = [f for f in report.findings if f.code == "AMP906"]
    assert (finding.severity, finding.module, finding.op) == ("info", "outer", "aten::addmm")
    assert "must have the same dtype" in finding.message


def test_within_the_range_it_is_compared_and_left_in_peace() -> None:
    report = mixed(1.0)
    assert (report.verdict, warnings_of(report)) == ("clean", [])
    assert report.losses[0].reference is not None


def test_a_model_that_refuses_fp32_is_compared_with_nothing() -> None:
    def only_half(model: nn.Module, x: Tensor) -> Tensor:
        if x.dtype == torch.float32:
            raise TypeError("half only")
        return torch.log(model(x) - 2).float().sum()

    report = report_of(only_half, torch.ones(2), mode="half")
    assert report.verdict == "forward-undefined"
    assert "FP32" not in report.sentence
    assert not any("FP32 has" in finding.message for finding in report.findings)
    (finding,) = [f for f in report.findings if f.code == "AMP906"]
    assert finding.severity == "warning"
    assert "TypeError: half only. Nothing here is compared with FP32." in finding.message

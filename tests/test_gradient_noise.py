"""Gradients that are zero in exact arithmetic hold nothing that low precision could lose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ampdoctor
from ampdoctor.scales.gradient_harm import is_harmed, without_noise
from case_runner import candidate, scan, warnings_of
from trace_builder import parameter


class Cancelling(nn.Module):
    """``noise`` is added to both sides of a difference: its gradient is zero, but for rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.noise, self.head = nn.Linear(16, 16), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        shift = self.noise(x).float().sum(-1, keepdim=True)
        y = self.head(x).float()
        out: Tensor = torch.log_softmax(torch.cat([y + shift, shift - y], -1), -1)
        return out


def test_a_module_whose_gradient_is_all_noise_is_left_in_peace() -> None:
    torch.manual_seed(0)
    trace, report = scan(
        Cancelling(), torch.randn(32, 16), lambda m, x: -m(x)[:, 0].mean(), loss_scale=1024.0
    )
    noise = {p.name: p for p in candidate(trace).parameters}["noise.weight"]
    assert noise.relative_error is not None and noise.relative_error > 0.05
    assert noise.reference_error is not None and noise.reference_error > 0.1
    assert {p.name for p in without_noise(candidate(trace).parameters)} == {"head.weight", "head.bias"}
    assert (report.verdict, warnings_of(report)) == ("clean", [])


class SingleOnly(Cancelling):
    """The same, with a kernel that has no double precision."""

    def forward(self, x: Tensor) -> Tensor:
        if self.head.weight.dtype == torch.float64:
            raise NotImplementedError("this kernel has no double precision")
        return super().forward(x)


class MakesFloat32(Cancelling):
    """The same, with a product in FP32 that the model asks for: next to float64 weights torch refuses it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.float())


def test_fp32_that_the_model_makes_itself_is_float64_in_a_float64_pass() -> None:
    torch.manual_seed(0)
    trace, report = scan(
        MakesFloat32(), torch.randn(32, 16), lambda m, x: -m(x)[:, 0].mean(), loss_scale=1024.0
    )
    errors = {p.name: p.reference_error for p in candidate(trace).parameters}
    assert errors["noise.weight"] is not None and errors["noise.weight"] > 0.1
    assert errors["head.weight"] is not None and errors["head.weight"] < 1e-3
    assert (report.verdict, warnings_of(report)) == ("clean", [])


def test_without_a_float64_pass_noise_is_what_is_small_beside_the_whole_model() -> None:
    """The weight of ``noise`` is as small as its bias: beside its own module nothing of it would be noise."""
    torch.manual_seed(0)
    trace, report = scan(
        SingleOnly(), torch.randn(32, 16), lambda m, x: -m(x)[:, 0].mean(), loss_scale=1024.0
    )
    noise = {p.name: p for p in candidate(trace).parameters}["noise.weight"]
    assert noise.reference_error is None and noise.relative_error is not None and noise.relative_error > 0.05
    assert {p.name for p in without_noise(candidate(trace).parameters)} == {"head.weight", "head.bias"}
    assert (report.verdict, warnings_of(report)) == ("clean", [])


def test_a_gradient_that_is_really_lost_is_not_taken_for_noise() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
    trace, report = scan(
        model, torch.randn(32, 16), lambda m, x: m(x).float().square().mean() * 1e-7, loss_scale=1.0
    )
    errors = [p.reference_error for p in candidate(trace).parameters]
    assert all(e is not None and e < 1e-3 for e in errors)
    assert report.verdict == "gradient-underflow"


def test_the_sum_of_a_norm_is_zero_and_so_is_the_gradient_before_it() -> None:
    """What people write first to try a model: the loss is rounding itself, and still of the same draw."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
    for scale in (1.0, 65536.0):
        trace, report = scan(model, torch.randn(2, 8), lambda m, x: m(x).sum(), loss_scale=scale)
        assert {p.name for p in without_noise(candidate(trace).parameters)} == {"1.weight", "1.bias"}
        assert (report.verdict, warnings_of(report)) == ("clean", [])


def test_another_draw_in_float64_says_nothing_of_noise() -> None:
    """``randn`` draws other numbers in float64: what differs there is no rounding."""
    torch.manual_seed(0)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x + torch.randn_like(x)).float().square().mean() * 1e-7

    trace, _ = scan(nn.Linear(16, 1), torch.randn(8, 16), loss, loss_scale=1.0)
    parameters = candidate(trace).parameters
    assert max(p.relative_error or 0.0 for p in parameters) > 0.05
    assert {p.reference_error for p in parameters} == {None}


def test_a_gradient_whose_terms_are_lost_further_up_is_said_to_be_off() -> None:
    """Of five terms FP16 keeps 2^-23 and loses four of 2^-26: their sum is a third too small, and no zero."""
    weights = torch.tensor([2.0**-23, 2.0**-26, 2.0**-26, 2.0**-26, 2.0**-26])[:, None]
    model = nn.Linear(1, 1)
    _, report = scan(model, torch.ones(5, 1), lambda m, x: (m(x).float() * weights).sum(), loss_scale=1.0)
    assert report.verdict == "gradient-underflow"
    (finding,) = (f for f in report.findings if f.code == "AMP203")
    assert "worst weight (off by 33.3 %)" in finding.message
    assert report.sentence.endswith("worst weight (off by 33.3 %).")


class Loud(nn.Module):
    """The weight's gradient is 2^22 times the bias's, which is real all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(1, 1)), nn.Parameter(torch.zeros(1, 1))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = (x @ self.weight).float() * 2.0**12 + (torch.ones_like(x) @ self.bias).float()
        return y


def test_a_bias_is_not_noise_because_its_weight_is_loud() -> None:
    """The bias receives 2^-43: at scale 2^18 that is 2^-25, which FP16 rounds to zero, at 2^19 2^-24, which
    it keeps. The weight receives 2^12 * 2^10 times as much."""
    batch = torch.full((1, 1), 2.0**10)
    trace, report = scan(Loud(), batch, lambda m, x: m(x).sum() * 2.0**-43, loss_scale=65536.0)
    seen = {p.name: p for p in candidate(trace).parameters}
    assert seen["weight"].reference_absmax == 2.0**-21 and seen["bias"].reference_absmax == 2.0**-43
    assert (seen["bias"].lost, seen["bias"].reference_error) == (1, 0.0)
    assert report.verdict == "gradient-underflow" and report.sentence.endswith(
        "1 parameter gets a gradient that rounding zeroed; worst bias (100.0 %)."
    )
    assert report.loss_scale.window is not None and report.loss_scale.window[0] == 2.0**19


@pytest.mark.parametrize("precision", [{}, {"dtype": "bfloat16"}, {"loss_scale": 1024.0}])
@pytest.mark.parametrize(("rows", "margin"), [(0, 0.0), (8, 1e3)])
def test_gradients_that_are_all_zero_say_nothing_of_any_scale(
    rows: int, margin: float, precision: dict[str, Any]
) -> None:
    """No rows, or a hinge that every row meets: zeros overflow nowhere, and nothing of them can be lost."""
    model = nn.Linear(4, 2)
    report = ampdoctor.scan(
        model, torch.ones(rows, 4), lambda m, x: torch.relu(m(x).float() - margin).sum(), **precision
    )
    name = "BF16" if "dtype" in precision else "FP16"
    assert report.verdict == "clean"
    assert report.sentence == f"CLEAN, as far as it goes: every gradient is zero, in {name} and in FP32."
    scales = report.loss_scale
    assert (scales.not_searched, scales.window, scales.recommended) == ("all-zero", None, None)
    assert "were not tried: every gradient is zero, in FP32 too" in str(report)


def test_a_batch_whose_gradients_are_zero_leaves_the_others_to_judge_by() -> None:
    """The full batch's gradients are 1 and 2: in FP16 from 2^0 on, nothing of them is lost."""
    batches = [(torch.zeros(0, 4),), (torch.ones(2, 4),)]
    report = ampdoctor.scan(nn.Linear(4, 2), batches, lambda m, x: m(x[0]).float().sum(), loss_scale=1024.0)
    assert report.loss_scale.not_searched is None and report.loss_scale.recommended is not None
    assert report.loss_scale.lost_fraction["1024"] == 0.0


def test_what_is_left_of_underflow_at_the_highest_scale_is_no_fault_of_an_op() -> None:
    """``loud`` receives 2^11 and ends the scales at 2^4. ``faint`` receives 1.3 * 2^-28: at 2^4 FP16 makes
    2^-24 of 1.3 * 2^-24, 23 % too little, at 2^3 of 0.65 * 2^-24 as well, 54 % too much."""
    weights = torch.tensor([2.0**11, 1.3 * 2.0**-28])
    model = nn.ParameterDict({"loud": torch.ones(1, 1), "faint": torch.ones(1, 1)})

    def step(model: nn.Module, x: Tensor) -> Tensor:
        loud, faint = model.get_parameter("loud"), model.get_parameter("faint")
        return (x @ loud).float().sum() * weights[0] + (x @ faint).float().sum() * weights[1]

    trace, report = scan(model, torch.ones(1, 1), step, scaler="dynamic")
    assert (trace.loss_scale, report.verdict) == (16.0, "clean")
    (finding,) = [f for f in report.findings if f.code == "AMP203"]
    assert (finding.severity, list(finding.evidence["parameters"])) == ("info", ["faint"])
    assert finding.evidence["parameters"]["faint"] == pytest.approx(1 - 1 / 1.3)


def test_elements_that_a_sensitive_model_loses_are_no_underflow() -> None:
    """FP32 errs by 3e-5 against float64: 2^13 times as much is 25 %, whatever the loss scale."""
    seen = parameter("head.weight", lost=40, reference_nonzero=100, relative_error=0.17)
    assert is_harmed(replace(seen, reference_error=1e-6), None)
    assert not is_harmed(replace(seen, reference_error=3e-5), None)
    assert is_harmed(replace(seen, relative_error=1.0, reference_error=3e-5), None)

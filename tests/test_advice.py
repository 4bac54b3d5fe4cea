"""What a report advises and what it does not repeat, by kind, on real models end to end."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ampdoctor.diagnose.report import Finding, Report
from case_runner import scan, warnings_of


class Plain(nn.Module):
    """One weight of one, so that the input arrives where a test wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x


Step = Callable[[nn.Module, Any], Any]


def report_of(step: Step, x: Any, mode: str = "half", model: nn.Module | None = None) -> Report:
    return scan(model or Plain(), x, step, mode=mode, loss_scale=1.0)[1]


def urgent(report: Report) -> Finding:
    """The only error."""
    (finding,) = [f for f in report.findings if f.severity == "error"]
    return finding


# ---------------------------------------------------------------- a guard that vanished is the root


def log_of_a_guarded_sigmoid(model: nn.Module, z: Tensor) -> Tensor:
    p = torch.sigmoid(model(z))
    guarded = p + 1e-8
    return -torch.log(guarded).float().sum()


def log_of_a_clamped_softmax(model: nn.Module, z: Tensor) -> Tensor:
    p = torch.softmax(model(z), -1)
    safe = p.clamp(min=1e-20)
    return -torch.log(safe).float().sum()


@pytest.mark.parametrize(
    ("step", "stable"),
    [(log_of_a_guarded_sigmoid, "logsigmoid"), (log_of_a_clamped_softmax, "use log_softmax")],
)
def test_an_eps_that_vanished_after_a_flush_is_what_is_named(step: Step, stable: str) -> None:
    """sigmoid(-20) is 2e-9, exp(-20) as well: 0 in FP16, which keeps nothing up to 3e-8; so is the eps."""
    finding = urgent(report_of(step, torch.tensor([-20.0, 0.0])))
    assert finding.code == "AMP106"
    assert finding.source is not None
    assert "1e-8" in finding.source.text or "1e-20" in finding.source.text
    assert stable in finding.remedy


def test_an_eps_whose_root_half_cannot_hold_is_not_to_be_added_in_fp32() -> None:
    """1 / sqrt(1e-10) = 100,000: in FP32 it is that, and does not fit FP16."""

    def step(model: nn.Module, x: Tensor) -> Tensor:
        return (model(x) + 1e-10).rsqrt().float().sum()

    finding = urgent(report_of(step, torch.tensor([0.0, 4.0])))
    assert "Adding it in FP32 is no cure: the 100,000" in finding.remedy
    assert "6.1e-5" in finding.remedy


def test_an_eps_that_is_held_guards() -> None:
    def step(model: nn.Module, x: Tensor) -> Tensor:
        return (model(x) + 1e-2).rsqrt().float().sum()

    report = report_of(step, torch.tensor([0.0, 4.0]))
    assert (report.verdict, warnings_of(report)) == ("clean", [])


# ---------------------------------------------------------------- FP32, then back to half


def test_what_does_not_fit_half_is_not_to_be_cast_back() -> None:
    def step(model: nn.Module, x: Tensor) -> Tensor:
        stream = model(x) + x
        return (stream / 1000).float().sum()

    finding = urgent(report_of(step, torch.tensor([40_000.0])))
    assert "80,000, does not fit FP16 either" in finding.remedy
    assert "back to half" not in finding.remedy


def test_what_fits_again_at_the_end_of_the_line_may_be() -> None:
    def step(model: nn.Module, x: Tensor) -> Tensor:
        half = (model(x) + x) / 1000
        return half.float().sum()

    assert "back to half" in urgent(report_of(step, torch.tensor([40_000.0]))).remedy


# ---------------------------------------------------------------- where, exp, dtypes, masks


def test_where_is_advised_only_where_there_is_one() -> None:
    def selects(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        return torch.where(y < 1, torch.exp(y), y).sum()

    def clamps(model: nn.Module, x: Tensor) -> Tensor:
        return torch.exp(model(x)).clamp(max=10).sqrt().sum()

    batch = torch.tensor([0.0, 116.0])
    assert "torch.where" in urgent(report_of(selects, batch, mode="autocast")).remedy
    report = report_of(clamps, batch, mode="autocast")
    assert not any("torch.where" in finding.remedy for finding in report.findings)


def test_exp_is_told_where_it_ends() -> None:
    def step(model: nn.Module, x: Tensor) -> Tensor:
        return torch.exp(model(x)).sum()

    remedy = urgent(report_of(step, torch.tensor([116.0]), mode="autocast")).remedy
    assert "inf from 88.7 on in FP32" in remedy
    assert "it is 116 here" in remedy


def test_no_remedy_has_dots_in_it() -> None:
    def step(model: nn.Module, x: Tensor) -> Tensor:
        return (model(x).half() * 1000.0).float().sum()

    for mode in ("half", "autocast"):
        report = report_of(step, torch.tensor([100.0]), mode=mode)
        assert not any("..." in finding.remedy for finding in report.findings)


@pytest.mark.parametrize(("half", "told"), [(True, True), (False, False)])
def test_a_half_summand_of_the_loss_is_named_as_what_it_is(half: bool, told: bool) -> None:
    """Its gradient is the scale, 2^17; widened before the mean, it is 2^17 / 4, which overflows elsewhere."""

    def step(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        regulariser = (y if half else y.float()).abs().mean()
        return y.float().square().mean() + regulariser

    report = scan(nn.Linear(2, 2), torch.ones(2, 2), step, loss_scale=2.0**18)[1]
    fault = report.first_fault
    assert fault is not None
    assert not (told and fault.implicit_cast)  # the sum's promotion, not autocast's
    assert any("summand of the loss on this line is half" in f.remedy for f in report.findings) == told


# ---------------------------------------------------------------- one fault is one finding


class Layer(nn.Module):
    def __init__(self, gain: float) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(gain))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gain


class Stack(nn.Module):
    def __init__(self, *gains: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(gain) for gain in gains)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def mean(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) / 1000).float().mean()


def test_thin_headroom_of_one_stream_is_one_finding() -> None:
    """32,768, 40,960 and 49,152: all past 32,752, half of FP16's range."""
    report = report_of(mean, torch.full((2,), 16_384.0), model=Stack(16_384.0, 8_192.0, 8_192.0))
    (finding,) = [f for f in report.findings if f.code == "AMP103"]
    assert (finding.module, finding.evidence["absmax"], finding.count) == ("layers.2", 49_152.0, 3)
    assert [place.module for place in finding.places] == ["layers.2", "layers.0", "layers.1"]


def test_one_line_in_two_layers_is_one_error() -> None:
    class Norm(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x / (x.abs().amax(-1, keepdim=True) + 1e-8)

    model = nn.Sequential(Norm(), nn.Linear(2, 2, bias=False), Norm())
    report = report_of(lambda m, x: m(x).float().sum(), torch.tensor([[0.0, 0.0], [1.0, 2.0]]), model=model)
    finding = urgent(report)
    assert finding.code == "AMP106"
    assert finding.module == "0"


def test_fp8_at_its_end_is_no_thin_headroom() -> None:
    def step(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        scale = 448.0 / y.abs().amax()
        quantised = (y * scale).to(torch.float8_e4m3fn).to(y.dtype) / scale
        return (y + (quantised - y).detach()).float().sum()

    report = report_of(step, torch.tensor([1.0, -2.0, 0.5]))
    assert (report.verdict, warnings_of(report)) == ("clean", [])


def test_the_table_of_a_ctc_loss_is_not_looked_at() -> None:
    """Past the end of the shorter target it is memory that nothing filled."""

    def step(model: nn.Module, x: Tensor) -> Tensor:
        lengths = torch.tensor([6, 6]), torch.tensor([3, 1])
        return F.ctc_loss(model(x).log_softmax(-1).float(), torch.tensor([[1, 2, 1], [2, 0, 0]]), *lengths)

    trace, report = scan(Plain(), torch.zeros(6, 2, 3), step, loss_scale=1.0)
    assert (report.verdict, warnings_of(report)) == ("clean", [])
    sites = [r.site for p in trace.passes for r in p.sites if r.site.op == "aten::_ctc_loss"]
    assert {site.output for site in sites} == {0}


# ---------------------------------------------------------------- an infinity made outside torch


class ByNumpy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        with np.errstate(over="ignore"):
            return torch.from_numpy(np.exp(x.detach().float().numpy()))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class Outside(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return ByNumpy.apply(x)


@pytest.mark.parametrize("after", [nn.Linear(2, 2), nn.Identity()])
def test_an_infinity_made_by_numpy_is_named_where_it_enters(after: nn.Module) -> None:
    """exp(100) is past FP32's end, 88.7."""
    model = nn.Sequential(nn.Linear(2, 2), Outside(), after)
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(2)), model[0].bias.zero_()
    report = report_of(lambda m, x: m(x).sum(), torch.tensor([[100.0, 1.0]]), mode="autocast", model=model)
    fault = report.first_fault
    assert fault is not None
    assert (report.verdict, fault.module, fault.op) == ("forward-undefined", "1", "python::ByNumpy")
    assert fault.source is not None
    assert "ByNumpy.apply(x)" in fault.source.text
    assert fault.fp32_also_fails


def test_a_mask_made_by_numpy_is_left_in_peace() -> None:
    def step(model: nn.Module, x: Tensor) -> Tensor:
        mask = torch.from_numpy(np.array([0.0, -math.inf, 0.0], dtype=np.float32))
        return (model(x) + mask).softmax(-1).square().sum()

    report = report_of(step, torch.tensor([[1.0, 2.0, 3.0]]), mode="autocast")
    assert (report.verdict, warnings_of(report)) == ("clean", [])

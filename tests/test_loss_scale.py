"""Loss scales by hand: models whose gradients are powers of two have windows one can work out on paper."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import case_runner
from ampdoctor.diagnose.engine import diagnose
from ampdoctor.diagnose.policy import Policy
from ampdoctor.diagnose.report import Report
from ampdoctor.facts.floats import FLOAT16
from ampdoctor.facts.trace import Trace
from ampdoctor.load.workload import Workload
from ampdoctor.probe.plan import Plan
from ampdoctor.probe.scan import probe
from ampdoctor.scales.powers_of_two import ceiling_of, gradient_tensors, shares_zeroed, sweep
from case_runner import candidate


class Chain(nn.Module):
    """y = w2 * (w1 * x), each a 1x1 Linear without bias."""

    def __init__(self, w1: float, w2: float) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        with torch.no_grad():
            self.first.weight.fill_(w1)
            self.second.weight.fill_(w2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(x))
        return out


def scan(
    model: nn.Module, x: Tensor, loss_factor: float, plan: Plan | None = None, policy: Policy | None = None
) -> tuple[Trace, Report]:
    def loss(m: nn.Module, batch: Any) -> Tensor:
        return m(batch).float().sum() * loss_factor

    trace = probe(Workload("by hand", model, (x,), loss), plan or Plan())
    return trace, diagnose(trace, policy or Policy())


# Chain(w1 = 2^-3, w2 = 2^14) on x = 1 with a loss of 2^-30 y. FP16 tensors of backward, at scale 1:
#   the cast of y's gradient    2^-30
#   second.weight's gradient    2^-30 * h    = 2^-33
#   h's gradient                2^-30 * 2^14 = 2^-16
#   first.weight's gradient     2^-16 * x    = 2^-16
# The smallest survives where 2^(k-33) > 2^-25, from k = 9 on; the largest overflows where 2^(k-16) is 2^16,
# at k = 32.


def test_the_window_of_a_chain_of_powers_of_two():
    _, report = scan(Chain(2.0**-3, 2.0**14), torch.ones(1, 1), 2.0**-30)
    scales = report.loss_scale
    assert scales.ceiling == 2.0**31
    assert scales.window == (2.0**9, 2.0**30)
    assert scales.recommended == 2.0**24
    assert scales.verified


def test_the_margin_moves_the_top_of_the_window_and_not_the_ceiling():
    plan, policy = Plan(scale_margin_bits=3), Policy(scale_margin_bits=3)
    _, report = scan(Chain(2.0**-3, 2.0**14), torch.ones(1, 1), 2.0**-30, plan, policy)
    assert report.loss_scale.ceiling == 2.0**31
    assert report.loss_scale.window == (2.0**9, 2.0**28)


def test_the_share_of_zeros_at_every_scale():
    _, report = scan(Chain(2.0**-3, 2.0**14), torch.ones(1, 1), 2.0**-30)
    shares = report.loss_scale.underflow_fraction
    assert shares["1"] == 1.0  # run: the cast makes its 2^-30 zero, and with it all that is behind it
    # not run: of four elements 2^-30 and 2^-33 are zero, both 2^-16 stand
    assert shares["32"] == 0.5  # 2^-30 * 2^5 = 2^-25 is a tie, and goes to zero
    assert shares["64"] == 0.25
    assert shares["256"] == 0.25  # 2^-33 * 2^8 = 2^-25, the tie again
    assert shares["512"] == 0.0
    assert shares[str(2**31)] == 0.0
    assert shares[str(2**32)] is None  # overflows


def test_tensors_that_overflow_are_counted_at_every_scale():
    trace, _ = scan(Chain(2.0**-3, 2.0**14), torch.ones(1, 1), 2.0**-30)
    candidate = next(p for p in trace.passes if p.role == "candidate")
    reference = next(p for p in trace.passes if p.role == "reference")
    points = {p.exponent: p for p in sweep(gradient_tensors(candidate, reference))}
    assert points[31].overflowing == 0
    assert (points[32].overflowing, points[32].overflowed_elements) == (2, 2)


def test_what_limits_either_end_is_named():
    _, report = scan(Chain(2.0**-3, 2.0**14), torch.ones(1, 1), 2.0**-30)
    limits = report.loss_scale.limited_by
    assert limits is not None
    # h's gradient is made by the backward of the second layer, before the first layer's weight gradient
    assert limits["module"] == "second"
    assert limits["low"]["module"] == "second"
    assert "self.second(self.first(x))" in limits["source"]["text"]


# Chain(w1 = 1, w2 = 2^6) on x = 2^-6, loss y: second.weight gets h = 2^-6, first.weight gets 2^6 * 2^-6 = 1,
# but h's gradient is 2^6.


def test_parameter_gradients_alone_would_put_the_ceiling_six_bits_too_high():
    trace, report = scan(Chain(1.0, 2.0**6), torch.full((1, 1), 2.0**-6), 1.0, Plan(loss_scale=16.0))
    candidate = next(p for p in trace.passes if p.role == "candidate")
    by_parameters = min(ceiling_of(p.absmax or 0.0, FLOAT16) for p in candidate.parameters)
    assert by_parameters == 15
    assert report.loss_scale.ceiling == 2.0**9
    assert report.loss_scale.verified


class Fade(torch.autograd.Function):
    """Identity in forward; in backward an eighth of the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2.0**-3


class Fading(nn.Module):
    """Layers of weight 1; the gradient loses three bits from each to the one before it."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1, 1, bias=False) for _ in range(depth))
        with torch.no_grad():
            for layer in self.layers:
                layer.weight.fill_(1.0)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(Fade.apply(x))
        return x


def test_a_deep_model_has_no_window_where_its_gradients_span_more_bits_than_the_format():
    # Last layer 2^0, first 2^-48; FP16 spans 2^-24 to 2^15. At the ceiling 2^15 the first is 2^-33.
    _, report = scan(Fading(17), torch.ones(1, 1), 1.0, Plan(loss_scale=1024.0))
    assert report.verdict == "no-workable-scale"
    assert report.loss_scale.window is None
    assert report.loss_scale.ceiling == 2.0**15
    finding = next(f for f in report.findings if f.code == "AMP204")
    assert finding.severity == "error"
    assert finding.evidence["ceiling"] == 2.0**15
    assert {a["kind"] for a in report.loss_scale.alternatives} >= {"bfloat16", "module-in-fp32"}
    bfloat16 = next(a for a in report.loss_scale.alternatives if a["kind"] == "bfloat16")
    assert bfloat16["window"] == [1.0, 2.0**32]


class RootOfZero(Chain):
    """A chain with the root of a zero in between, whose derivative no format has."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        out: Tensor = self.second(hidden) + (hidden - hidden).float().sqrt()
        return out


def test_nothing_is_said_to_help_where_float32_has_the_fault_too() -> None:
    _, report = scan(RootOfZero(1.0, 1.0), torch.ones(1, 1), 1.0, Plan(loss_scale=1024.0))
    assert report.verdict == "backward-undefined"
    assert (report.loss_scale.window, report.loss_scale.alternatives) == (None, ())


def test_a_shallow_one_has():
    # 2^0 to 2^-12: the smallest survives everywhere, the largest up to 2^15.
    _, report = scan(Fading(5), torch.ones(1, 1), 1.0, Plan(loss_scale=1024.0))
    assert report.verdict == "clean"
    assert report.loss_scale.window == (1.0, 2.0**14)


@pytest.mark.parametrize(
    ("loss_scale", "verdict", "code", "severity"),
    [
        (2.0**17, "backward-overflow", "AMP205", "warning"),
        (2.0**15, "clean", "AMP205", "info"),  # the ceiling itself: finite, but in the margin
        (2.0**14, "clean", None, None),
    ],
)
def test_a_configured_scale_outside_the_window(loss_scale, verdict, code, severity):
    _, report = scan(Fading(5), torch.ones(1, 1), 1.0, Plan(loss_scale=loss_scale))
    assert report.verdict == verdict
    found = [f for f in report.findings if f.code == "AMP205"]
    assert [f.severity for f in found] == ([severity] if code else [])


def test_the_bits_of_a_scale_too_high_are_counted_from_the_window_that_is_printed():
    _, report = scan(Fading(5), torch.ones(1, 1), 1.0, Plan(loss_scale=2.0**17))
    (finding,) = [f for f in report.findings if f.code == "AMP205"]
    assert "is 3 bits too high (1 to 16,384 work)" in finding.message


def test_a_scale_that_is_no_power_of_two_is_searched_from_one_that_is():
    _, report = scan(Fading(5), torch.ones(1, 1), 1.0, Plan(loss_scale=1000.0))
    assert report.loss_scale.window == (1.0, 2.0**14)
    assert report.loss_scale.verified


def test_a_scale_too_high_is_found_from_below():
    trace, report = scan(Fading(5), torch.ones(1, 1), 1.0, Plan(loss_scale=2.0**20))
    assert report.verdict == "backward-overflow"
    assert report.loss_scale.window == (1.0, 2.0**14)
    assert report.loss_scale.verified
    assert [r.finite for r in trace.scale_runs if r.loss_scale == 2.0**16] == [False]


def test_several_batches_share_the_lowest_ceiling():
    def loss(m: nn.Module, batch: Any) -> Tensor:
        return m(batch["x"]).float().sum() * batch["weight"]

    batches = tuple({"x": torch.ones(1, 1), "weight": 2.0**e} for e in (0, 4, -3))
    trace = probe(Workload("batches", Fading(3), batches, loss), Plan(loss_scale=1024.0))
    report = diagnose(trace, Policy())
    assert report.loss_scale.ceiling == 2.0**11
    assert report.loss_scale.window == (1.0, 2.0**10)
    assert report.loss_scale.limited_by is not None
    assert report.loss_scale.limited_by["batch"] == 1


def test_the_low_end_is_where_a_parameter_is_harmed_and_not_where_zeros_are_counted():
    """Half of what flows back through ``where`` is 2^-30 and below FP16; it adds nothing to any weight."""

    def loss(m: nn.Module, x: Tensor) -> Tensor:
        return (m(x).float() * torch.tensor([[1.0], [2.0**-30]])).sum()

    torch.manual_seed(0)
    trace = probe(Workload("by hand", nn.Linear(2, 1), (torch.ones(2, 2),), loss), Plan(loss_scale=1024.0))
    report = diagnose(trace, Policy())
    assert report.loss_scale.window is not None
    assert report.loss_scale.window[0] == 1.0
    assert report.loss_scale.underflow_fraction["1"] > 0.01
    assert [r.finite for r in trace.scale_runs if r.loss_scale == 1.0] == [True]


def test_no_search_where_the_forward_is_at_fault():
    model = Chain(2.0**9, 2.0**9)
    trace, report = scan(model, torch.ones(1, 1), 1.0)
    assert report.verdict == "forward-overflow"
    assert trace.scale_runs == ()


def _benchmark() -> Any:
    path = Path(__file__).parent.parent / "benchmarks" / "scale_truth.py"
    spec = importlib.util.spec_from_file_location("scale_truth", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["scale_truth"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["deep tanh", "convolutions", "small before norm", "GPT-2", "LSTM"])
def test_one_recording_against_running_every_scale(name):
    truth = _benchmark()
    torch.manual_seed(0)
    build, loss_scale = truth.MODELS[name]
    result = truth.compare(name, build(), loss_scale)
    assert result.predicted_ceiling == result.true_ceiling
    assert result.largest_difference < 0.01


def test_the_underflow_of_nothing_is_none():
    assert set(shares_zeroed([])) == {0.0}


def test_an_infinite_gradient_that_a_mask_takes_in_is_no_overflow() -> None:
    """Where the mask is off, 1,024 * 1,000 leaves FP16 on its way back, and ``where`` zeroes it there."""
    keep = torch.tensor([[True, False]])

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        kept = torch.where(keep, model(x), torch.zeros((), dtype=torch.float16))
        return (kept * torch.tensor([[0.5, 1000.0]], dtype=torch.float16)).float().sum()

    torch.manual_seed(0)
    trace, report = case_runner.scan(nn.Linear(2, 2), torch.ones(1, 2), loss, loss_scale=1024.0)
    assert candidate(trace).parameters[0].inf == 0
    assert report.verdict == "clean"
    # The first that a parameter sees is the loss's own gradient, which is the scale: 2^16 is past the end.
    assert report.loss_scale.ceiling == 2.0**15


class Towers(nn.Module):
    """Two weights of 1; 2^14 of the one is in the loss, and 2^-28 of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.loud, self.faint = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        for tower in (self.loud, self.faint):
            nn.init.ones_(tower.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.loud(x).float() * 2.0**14 + self.faint(x).float() * 2.0**-28


def test_what_is_advised_where_no_scale_works_was_run() -> None:
    # 2^14 fits up to scale 2, less a bit of margin 1; 2^-28 is zero there. Its own ceiling is 2^43, and
    # nothing beyond 2^24 is recommended.
    _, report = scan(Towers(), torch.ones(1, 1), 1.0, Plan(loss_scale=16.0))
    run = {a["kind"]: (a["module"], a["run"]) for a in report.loss_scale.alternatives if a["run"]}
    assert run["module-scaled-apart"][0] == "faint"
    assert run["module-scaled-apart"][1]["factor"] == 2.0**24
    assert (run["module-scaled-apart"][1]["works"], run["module-scaled-apart"][1]["loss_scale"]) == (
        True,
        1.0,
    )
    (finding,) = (f for f in report.findings if f.code == "AMP204")
    assert "give faint a loss scale of its own, 2^24 times a loss scale of 1" in finding.remedy
    assert run["bfloat16"][1]["works"] and "rain in BF16" in finding.remedy
    failing = [a["module"] for a in report.loss_scale.alternatives if a["run"] and not a["run"]["works"]]
    assert not any(f"keep {module} in FP32" in finding.remedy for module in failing)


class Louder(nn.Module):
    """Three factors of 2^15 in the backward of half tensors: past 65,504 with the second, at scale 1 too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(1, 1), nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        for _ in range(3):
            h = Times.apply(h)
        return self.last(h)


class Times(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2.0**15


def test_where_no_scale_works_nobody_is_told_to_lower_it() -> None:
    _, report = scan(Louder(), torch.ones(1, 1), 1.0, Plan())
    assert report.verdict == "no-workable-scale"
    remedies = {f.code: f.remedy for f in report.findings}
    assert remedies["AMP201"] == "Follow AMP204: no loss scale works."
    assert not any("lower scale" in remedy for remedy in remedies.values())

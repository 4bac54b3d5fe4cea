"""The optimizer's first step on low-precision weights: what is swallowed, what destroyed, by which line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ampdoctor.diagnose.engine import diagnose
from ampdoctor.facts.trace import OptimizerStep
from ampdoctor.facts.updates import ParameterUpdate
from ampdoctor.load.workload import Workload
from ampdoctor.probe.optimizer_steps import optimizer_steps
from ampdoctor.probe.plan import Plan
from ampdoctor.probe.scan import probe
from case_runner import assert_same, run_case, snapshot, warnings_of

BuildOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


class Weights(nn.Module):
    """Its loss is the sum of its weights times the batch: the batch is the gradient."""

    def __init__(self, *values: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(values))

    def forward(self, x: Tensor) -> Tensor:
        return (self.w * x).float().sum()


def sgd(lr: float) -> BuildOptimizer:
    return lambda model: torch.optim.SGD(model.parameters(), lr=lr)


def step_of(
    model: nn.Module, gradient: list[float], build_optimizer: BuildOptimizer, **plan: Any
) -> OptimizerStep | None:
    """The facts of the first step; asserts that it left everything as it was."""
    before, init = snapshot(model), torch.optim.Optimizer.__init__
    batch = (torch.tensor(gradient),)
    loss = plan.pop("loss", lambda m, x: m(x))
    workload = Workload("test", model, batch, loss, build_optimizer=build_optimizer)
    settings = {"mode": "half", "loss_scale": 1.0, "device": "cpu", "optimizer_steps": 1} | plan
    found = optimizer_steps(workload, Plan(**settings), torch.device("cpu"))
    assert_same(snapshot(model), before)
    assert torch.optim.Optimizer.__init__ is init
    return found


def update_of(model: nn.Module, gradient: list[float], build: BuildOptimizer, **plan: Any) -> ParameterUpdate:
    found = step_of(model, gradient, build, **plan)
    assert found is not None and found.failure == ""
    (update,) = found.updates
    return update


# ---------------------------------------------------------------- what is counted


def test_a_step_of_half_the_distance_to_the_next_number_is_swallowed() -> None:
    """Below 1, FP16 numbers are 2^-11 apart: 1 - 2^-12 is a tie and goes back to 1. At 0.25 it is two numbers
    further down."""
    update = update_of(Weights(1.0, 0.25), [1.0, 1.0], sgd(2.0**-12))
    assert (update.numel, update.moved, update.swallowed, update.dtype) == (2, 2, 1, "float16")
    assert (update.nan, update.inf, update.eps) == (0, 0, None)
    assert (update.update, update.spacing) == (2.0**-12, 2.0**-12)


def test_the_distance_is_that_to_the_next_larger_number() -> None:
    assert update_of(Weights(1.5), [1.0], sgd(2.0**-9)).spacing == 2.0**-10
    assert update_of(Weights(2.0**-20), [1.0], sgd(2.0**-9)).spacing == 2.0**-24


def test_a_larger_step_is_not_swallowed() -> None:
    assert update_of(Weights(1.0, 0.25), [1.0, 1.0], sgd(2.0**-11)).swallowed == 0


def test_weights_without_an_update_in_fp32_do_not_count() -> None:
    update = update_of(Weights(1.0, 1.0, 1.0), [1.0, 0.0, 0.0], sgd(2.0**-13))
    assert (update.moved, update.swallowed) == (1, 1)


def test_bfloat16_weights_as_they_are_built() -> None:
    """BF16 numbers below 1 are 2^-8 apart."""
    model = Weights(1.0).bfloat16()
    assert update_of(model, [1.0], sgd(2.0**-9), mode="none", dtype="bfloat16").swallowed == 1
    assert update_of(model, [1.0], sgd(2.0**-8), mode="none", dtype="bfloat16").swallowed == 0


def test_half_weights_under_autocast_are_low_precision_as_well() -> None:
    assert update_of(Weights(1.0).half(), [1.0], sgd(2.0**-12), mode="autocast").swallowed == 1


def test_gradients_are_divided_by_the_loss_scale_where_they_lie() -> None:
    """2^-20 is an FP16 number before and after; 2^-26, kept at scale 1024, becomes 0 in the division."""
    assert update_of(Weights(0.0, 0.0), [2.0**-20, 2.0**-20], sgd(1.0), loss_scale=1024.0).swallowed == 0
    tiny = [2.0**-16, 1.0]
    step = {"loss": lambda m, x: m(x) * 2.0**-10, "loss_scale": 1024.0}
    assert update_of(Weights(0.0, 0.0), tiny, sgd(1.0), **step).swallowed == 1


def test_only_parameters_that_the_optimizer_holds() -> None:
    model = nn.ModuleList([Weights(1.0), Weights(1.0)])
    workload = Workload(
        "test", model, (torch.ones(1),), lambda m, x: m[0](x) + m[1](x),
        build_optimizer=lambda m: torch.optim.SGD(m[1].parameters(), lr=1.0),  # type: ignore[index]
    )  # fmt: skip
    found = optimizer_steps(workload, Plan(mode="half", loss_scale=1.0, device="cpu"), torch.device("cpu"))
    assert found is not None
    assert [u.name for u in found.updates] == ["1.w"]


# ---------------------------------------------------------------- where nothing is measured


def test_fp32_weights_are_not_looked_at() -> None:
    assert step_of(Weights(1.0), [1.0], sgd(0.1), mode="autocast") is None


def test_gradients_that_are_not_finite_allow_no_step() -> None:
    found = step_of(Weights(1.0), [60000.0], sgd(0.1), loss_scale=4.0)
    assert found is not None
    assert (found.updates, found.failure) == ((), "the float16 pass gives gradients that are not finite")


def test_an_optimizer_that_raises_is_told_and_the_scan_goes_on() -> None:
    workload = Workload(
        "test", Weights(1.0), (torch.ones(1),), lambda m, x: m(x),
        build_optimizer=lambda m: torch.optim.LBFGS(m.parameters()),
    )  # fmt: skip
    trace = probe(workload, Plan(mode="half", loss_scale=1.0, device="cpu", search_scale=False))
    assert trace.optimizer_step is not None
    assert trace.optimizer_step.failure.startswith("LBFGS.step() asks for a closure")
    assert any("the optimizer's steps (LBFGS.step()" in words for words in diagnose(trace).not_seen)


# ---------------------------------------------------------------- the line, and the op


def build_sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=2.0**-12)


class Dividing(torch.optim.Optimizer):
    """Divides by a zero of its own."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"eps": 1e-8})

    def step(self, closure: Any = None) -> None:
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                denominator = parameter.grad - parameter.grad
                parameter.div_(denominator.add_(1e-8))


def build_dividing(model: nn.Module) -> torch.optim.Optimizer:
    return Dividing(model.parameters())


def test_the_line_that_makes_the_optimizer() -> None:
    found = step_of(Weights(1.0), [1.0], build_sgd)
    assert found is not None and found.source is not None
    assert (found.optimizer, found.source.text) == (
        "SGD",
        "return torch.optim.SGD(model.parameters(), lr=2.0**-12)",
    )


def test_an_optimizer_of_the_users_own_is_made_outside_of_it_and_breaks_inside() -> None:
    found = step_of(Weights(1.0, -1.0), [1.0, 1.0], build_dividing)
    assert found is not None and found.source is not None and found.birth is not None
    assert found.source.text == "return Dividing(model.parameters())"
    assert (found.updates[0].inf, found.updates[0].nan, found.updates[0].eps) == (2, 0, 1e-8)
    assert found.birth.site is not None and found.birth.source is not None
    assert (found.birth.site.op, found.birth.site.phase) == ("aten::div_", "optimizer")
    assert found.birth.source.text == "parameter.div_(denominator.add_(1e-8))"


# ---------------------------------------------------------------- the ground truth


def test_a_case_whose_updates_are_swallowed() -> None:
    report = run_case("half_weights_small_lr")
    assert (report.verdict, warnings_of(report)) == ("update-swallowed", ["AMP301 "])
    (finding,) = [f for f in report.findings if f.code == "AMP301"]
    # In the first of 25 steps 27 of 1,494 weights move in FP16 and 1,490 in FP32, as its key has measured
    # (0.0181 and 0.9973); the last five are counted together.
    assert finding.evidence["share_by_step"][0] == 1463 / 1490
    assert (finding.evidence["steps"], finding.evidence["window"]) == (25, 5)
    assert finding.evidence["moved"] == 5 * 1490
    assert 0.97 < finding.evidence["share"] < 1
    assert finding.source is not None
    assert "return torch.optim.SGD(model.parameters(), lr=1e-4)" in finding.source.text


def test_a_case_whose_eps_vanishes() -> None:
    report = run_case("adam_eps_vanishes_half")
    assert (report.verdict, warnings_of(report)) == ("update-swallowed", ["AMP303 "])
    (finding,) = [f for f in report.findings if f.code == "AMP303"]
    assert (finding.severity, finding.evidence["op"]) == ("error", "aten::addcdiv_")
    assert len(finding.evidence["non_finite"]) == 3
    assert finding.source is not None
    assert "return torch.optim.Adam(model.parameters(), lr=1e-3)" in finding.source.text


# ---------------------------------------------------------------- FP32 weights, and a cast inside the step


class Casting(torch.optim.Optimizer):
    """Steps in the gradient's direction, which it takes from a copy in a short format."""

    def __init__(self, parameters: Any, dtype: torch.dtype, first: bool, eps: float) -> None:
        super().__init__(parameters, {})
        self.dtype, self.first, self.eps = dtype, first, eps

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            if self.first:
                short = (p.grad / p.grad.norm()).to(self.dtype)
            else:
                short = p.grad.to(self.dtype)
            p.sub_(short.float() / (short.float().norm() + self.eps))


def casting(dtype: torch.dtype, first: bool = False, eps: float = 1e-30) -> BuildOptimizer:
    return lambda model: Casting(model.parameters(), dtype, first, eps)


FP32 = {"mode": "autocast"}
TINY = [2.0**-30, -(2.0**-30)]


def test_an_optimizer_that_casts_before_it_normalises_moves_nothing() -> None:
    """2^-30 is below half of FP16's smallest number, 2^-24."""
    found = step_of(Weights(1.0, 1.0), TINY, casting(torch.float16), **FP32)
    assert found is not None and found.source is not None
    assert (found.casts_to, found.source.text) == ("float16", "short = p.grad.to(self.dtype)")
    assert [(u.moved, u.swallowed) for u in found.updates] == [(2, 2)]


def test_one_that_flushes_a_part_loses_that_part() -> None:
    found = step_of(Weights(1.0, 1.0), [2.0**-30, 2.0**-10], casting(torch.float16), **FP32)
    assert found is not None
    # Without the cast, the first element moves by 2^-20: FP32 numbers below 1 are 2^-24 apart.
    assert [(u.moved, u.swallowed) for u in found.updates] == [(2, 1)]


def test_weights_that_the_cast_destroys_are_told_from_swallowed_ones() -> None:
    """Without an eps, the zeros are divided by their own norm."""
    found = step_of(Weights(1.0, 1.0), TINY, casting(torch.float16, eps=0.0), **FP32)
    assert found is not None
    assert [(u.moved, u.swallowed, u.nan) for u in found.updates] == [(2, 0, 2)]


def test_one_that_normalises_first_or_takes_bf16_or_meets_ordinary_gradients_is_fine() -> None:
    assert step_of(Weights(1.0, 1.0), TINY, casting(torch.float16, first=True), **FP32) is None
    assert step_of(Weights(1.0, 1.0), TINY, casting(torch.bfloat16), **FP32) is None
    assert step_of(Weights(1.0, 1.0), [0.5, 0.25], casting(torch.float16), **FP32) is None


def test_weights_that_start_at_zero_are_the_smallest_number_apart() -> None:
    assert update_of(Weights(0.0), [1.0], sgd(0.1)).spacing == 2.0**-24


def test_the_case_whose_optimizer_casts() -> None:
    report = run_case("muon_ns_half")
    assert (report.verdict, warnings_of(report)) == ("update-swallowed", ["AMP301 "])
    (finding,) = [f for f in report.findings if f.code == "AMP301"]
    assert finding.source is not None and finding.source.text == "x = g.to(torch.float16)"
    assert (finding.evidence["moved"], finding.evidence["share_by_step"][0]) == (5 * 512, 1.0)

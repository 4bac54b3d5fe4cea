"""Kinds of optimizers, end to end: what rounding takes from their steps, and what it only seems to take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ampdoctor.diagnose.engine import diagnose
from ampdoctor.diagnose.report import Report
from ampdoctor.facts.trace import OptimizerStep
from ampdoctor.load.workload import Workload
from ampdoctor.probe.plan import Plan
from ampdoctor.probe.scan import probe
from case_runner import assert_same, snapshot

Build = Callable[[nn.Module], torch.optim.Optimizer]
BF16: dict[str, Any] = {"mode": "half", "dtype": "bfloat16", "loss_scale": 1.0}
FP16: dict[str, Any] = {"mode": "half", "dtype": "float16", "loss_scale": 1.0}


class Weights(nn.Module):
    """Its loss is the sum of its weights times the batch: the batch is the gradient."""

    def __init__(self, *values: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(values))

    def forward(self, x: Tensor) -> Tensor:
        return (self.w * x).float().sum()


def scanned(
    model: nn.Module, batches: Sequence[Any], build: Build, loss: Any = None, **plan: Any
) -> tuple[OptimizerStep | None, Report]:
    """The facts of the steps, and the report; asserts that everything is as it was."""
    before = snapshot(model)
    step = loss or (lambda m, x: m(x))
    workload = Workload("test", model, tuple(batches), step, build_optimizer=build)
    trace = probe(workload, Plan(device="cpu", search_scale=False, **plan))
    assert_same(snapshot(model), before)
    return trace.optimizer_step, diagnose(trace)


def messages(report: Report) -> str:
    return " ".join(f.message for f in report.findings if f.code.startswith("AMP3"))


ONES = [torch.ones(1)]


def sgd(lr: float, **more: Any) -> Build:
    return lambda model: torch.optim.SGD(model.parameters(), lr=lr, **more)


def adam(lr: float) -> Build:
    return lambda model: torch.optim.Adam(model.parameters(), lr=lr)


# ---------------------------------------------------------------- what is lost


def test_adams_first_step_is_its_best() -> None:
    """BF16 numbers below 1 are 2^-8 apart. The first update is the learning rate, 2^-8; with a gradient that
    falls to a hundredth the later ones are a tenth of it and less, and go the same way."""
    batches = [torch.ones(1), *(torch.full((1,), 0.01) for _ in range(24))]
    step, report = scanned(Weights(1.0), batches, adam(2.0**-8), **BF16)
    assert step is not None
    assert (step.by_step[0].moved, step.by_step[0].swallowed) == (1, 0)
    assert all((s.moved, s.swallowed) == (1, 1) for s in step.by_step[20:])
    assert (step.updates[0].moved, step.updates[0].swallowed, step.window) == (5, 5, 5)
    assert report.verdict == "update-swallowed"
    assert "in step 0: 0.0 %" in messages(report)


def test_updates_that_cancel_out_lose_nothing_by_rounding() -> None:
    """Gradients of 1 and -1 in turn: after the first step, which arrives, nothing adds up in FP32 either."""
    batches = [torch.ones(1), -torch.ones(1)]
    step, report = scanned(Weights(1.0), batches, adam(2.0**-7), **BF16)
    assert step is not None and step.by_step[-1].swallowed == 1
    assert report.verdict == "clean"


class Two(nn.Module):
    """A large parameter at zero, where anything arrives, and a single number at 1."""

    def __init__(self) -> None:
        super().__init__()
        self.large = nn.Parameter(torch.zeros(1000))
        self.small = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return (self.large.float().sum() + self.small.float()) * x.float().sum()


def test_a_whole_parameter_that_never_moves_however_small() -> None:
    step, report = scanned(Two(), ONES, sgd(2.0**-13), **FP16)
    assert step is not None and [u.never_moves for u in step.updates] == [False, True]
    assert report.verdict == "update-swallowed"
    assert report.sentence == (
        "UPDATES SWALLOWED. small does not move in 25 steps of SGD in FP16; in FP32 it does."
    )


def test_one_that_fp32_does_not_move_either_is_no_fault() -> None:
    """1 - 2^-26 is 1 in FP32 as well."""
    step, report = scanned(Weights(1.0), ONES, sgd(2.0**-26), **FP16)
    assert step is not None and [u.never_moves for u in step.updates] == [False]
    assert (report.verdict, messages(report)) == ("clean", "")


class Normed(nn.Module):
    """A bias in front of a BatchNorm: its gradient is zero, and what FP32 makes of that is noise."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.norm.requires_grad_(False)
        nn.init.constant_(self.fc.bias, 100.0)

    def forward(self, x: Tensor) -> Any:
        return (self.norm(self.fc(x)).float() - x.float()).square().mean()


def test_a_gradient_that_is_noise_moves_nothing_that_counts() -> None:
    torch.manual_seed(1)
    model = Normed()
    step, report = scanned(model, [torch.randn(64, 8)], adam(1e-2), **BF16)
    assert step is not None and {u.name: u.never_moves for u in step.updates}["fc.bias"]
    assert "never" not in messages(report) and "fc.bias" not in messages(report)


def adamw(lr: float, decay: float) -> Build:
    return lambda model: torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=decay)


def test_a_decay_that_rounds_back_to_the_weight() -> None:
    """1 - 2^-10 is nearer to 1 than to the next number, 1 - 2^-8; the update of 2^-6 arrives."""
    step, report = scanned(Weights(1.0, -0.5), [torch.ones(2)], adamw(2.0**-6, 2.0**-4), **BF16)
    assert step is not None
    parts = [(p.op, p.moved, p.swallowed, p.proportional) for p in step.updates[0].parts]
    assert parts == [("aten::mul_", 2, 2, True), ("aten::addcdiv_", 2, 0, False)]
    assert report.verdict == "update-swallowed"
    assert report.sentence == (
        "UPDATES SWALLOWED in part. The weight decay of AdamW moves no weight in BF16; in FP32 it does."
    )


def test_a_decay_that_arrives_is_silent() -> None:
    step, report = scanned(Weights(1.0, -0.5), [torch.ones(2)], adamw(2.0**-6, 0.5), **BF16)
    assert step is not None and [p.swallowed for p in step.updates[0].parts] == [0, 0]
    assert (report.verdict, messages(report)) == ("clean", "")


# ---------------------------------------------------------------- what makes up for rounding


class Own(torch.optim.Optimizer):
    """Moves weights down by ``lr``, in a way of its own."""

    def __init__(self, parameters: Any, lr: float, way: Callable[..., None]) -> None:
        super().__init__(parameters, {"lr": lr})
        self.way = way

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                self.way(p, self.state[p], self.param_groups[0]["lr"])


def by_chance(p: Tensor, state: Any, lr: float) -> None:
    """Stochastic rounding to BF16: random bits below the last, then cut off."""
    bits = (p.float() - lr).view(torch.int32)
    bits.add_(torch.randint_like(bits, 1 << 16)).bitwise_and_(-(1 << 16))
    p.copy_(bits.view(torch.float32))


def with_a_copy(p: Tensor, state: Any, lr: float) -> None:
    """The weight in FP32, of which the model's is a rounded copy."""
    master = state.setdefault("master", p.float().clone())
    p.copy_(master.sub_(lr))


def by_kahan(p: Tensor, state: Any, lr: float) -> None:
    """What a sum leaves out is added to the next."""
    rest = state.setdefault("rest", torch.zeros_like(p))
    step = rest - lr
    after = p + step
    state["rest"] = (p - after) + step
    p.copy_(after)


def plainly(p: Tensor, state: Any, lr: float) -> None:
    p.sub_(lr)


def own(way: Callable[..., None], lr: float) -> Build:
    return lambda model: Own(model.parameters(), lr, way)


def many() -> Weights:
    return Weights(*([1.0] * 512))


LOSES = 2.0**-12
"""An eighth of what it takes to get from 1 to the BF16 number below."""


def test_the_same_update_without_any_help_is_lost() -> None:
    step, report = scanned(many(), [torch.ones(512)], own(plainly, LOSES), **BF16)
    assert step is not None and step.updates[0].arrived == 0.0
    assert report.verdict == "update-swallowed"


def test_stochastic_rounding_may_make_up_for_it() -> None:
    step, report = scanned(many(), [torch.ones(512)], own(by_chance, LOSES), **BF16)
    assert step is not None and step.draws
    assert 2 * step.updates[0].swallowed > step.updates[0].moved
    assert (report.verdict, messages(report)) == ("clean", "")
    assert any("it draws random numbers" in words for words in report.not_seen)


def test_an_fp32_copy_makes_up_for_it() -> None:
    step, report = scanned(many(), [torch.ones(512)], own(with_a_copy, LOSES / 64), **BF16)
    assert step is not None and step.updates[0].carried
    assert (report.verdict, messages(report)) == ("clean", "")


def test_kahans_sum_makes_up_for_it() -> None:
    step, report = scanned(many(), [torch.ones(512)], own(by_kahan, LOSES / 16), **BF16)
    assert step is not None and step.updates[0].carried
    assert (report.verdict, messages(report)) == ("clean", "")


class Masters(torch.optim.SGD):
    """Holds FP32 copies in its groups, and the model's weights beside them."""

    def __init__(self, parameters: Any, lr: float) -> None:
        self.models = list(parameters)
        super().__init__([p.detach().float().clone().requires_grad_() for p in self.models], lr=lr)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        masters = self.param_groups[0]["params"]
        for master, p in zip(masters, self.models, strict=True):
            master.grad = p.grad.float()
        super().step()
        for master, p in zip(masters, self.models, strict=True):
            p.data.copy_(master.data)


def test_master_weights_in_the_groups_make_up_for_it() -> None:
    step, report = scanned(many(), [torch.ones(512)], lambda m: Masters(m.parameters(), LOSES / 64), **BF16)
    assert step is not None and [u.carried for u in step.updates] == [True]
    assert (report.verdict, messages(report)) == ("clean", "")


def test_a_momentum_is_no_copy() -> None:
    step, report = scanned(many(), [torch.ones(512)], sgd(LOSES / 64, momentum=0.9), **BF16)
    assert step is not None and not step.updates[0].carried
    assert report.verdict == "update-swallowed"


# ---------------------------------------------------------------- what destroys weights


def growing(p: Tensor, state: Any, lr: float) -> None:
    """Weights times 16 in each step: 65,536, the fifth from 1, is past FP16's end."""
    p.mul_(16.0)


def test_the_op_that_destroys_a_weight_is_its_place() -> None:
    model = nn.ModuleDict({"head": Weights(1.0, 1.0)})
    step, report = scanned(
        model, [torch.full((2,), 2.0**-14)], own(growing, 0.0), lambda m, x: m["head"](x),
        optimizer_steps=5, **FP16,
    )  # fmt: skip
    assert step is not None and step.birth is not None
    assert len(step.by_step) == 4 and step.fp32_diverges_at is None
    assert report.sentence == (
        "WEIGHTS DESTROYED by the optimizer. Step 3 of Own leaves 2 weight elements non-finite in FP16; FP32 "
        "is fine."
    )
    fault = report.first_fault
    assert fault is not None and fault.source is not None
    assert (fault.phase, fault.module, fault.op, fault.value) == ("optimizer", "head", "aten::mul_", "inf")
    assert (fault.source.text, fault.cause, fault.exact_value) == ("p.mul_(16.0)", "range", 65536.0)
    (finding,) = [f for f in report.findings if f.code == "AMP301"]
    assert (finding.module, finding.op, finding.source) == ("head", "aten::mul_", fault.source)


def test_a_divergence_that_fp32_has_too_is_not_precisions() -> None:
    """16^32 is 2^128, past FP32's end: the step with number 31."""
    step, report = scanned(
        Weights(1.0, 1.0), [torch.full((2,), 2.0**-14)], own(growing, 0.0), optimizer_steps=40, **FP16
    )
    assert step is not None and (len(step.by_step), step.fp32_diverges_at) == (4, 31)
    assert (report.verdict, messages(report)) == ("clean", "")
    assert any("no matter of precision" in words for words in report.not_seen)


# ---------------------------------------------------------------- steps that cannot be taken


def test_batches_take_turns_and_a_bad_one_ends_the_steps() -> None:
    batches = [torch.ones(1), torch.ones(1), torch.full((1,), float("nan"))]
    step, report = scanned(Weights(0.0), batches, sgd(0.125), **FP16)
    assert step is not None
    assert (len(step.by_step), step.stopped) == (2, "step 2 gives gradients that are not finite")
    assert any("step 2 gives gradients that are not finite" in words for words in report.not_seen)


def only_half(p: Tensor, state: Any, lr: float) -> None:
    if p.dtype == torch.float32:
        raise TypeError("half only")


def test_an_optimizer_that_raises_on_fp32_weights_is_told() -> None:
    step, report = scanned(Weights(0.0), ONES, own(only_half, 0.0), **FP16)
    assert step is not None and step.updates == ()
    assert step.failure == "Own.step() raises, on FP32 weights, TypeError: half only"
    assert report.verdict == "clean"


def test_fp32_weights_and_an_optimizer_without_casts_take_two_steps() -> None:
    taken = []

    def counted(p: Tensor, state: Any, lr: float) -> None:
        taken.append(p.dtype)

    step, report = scanned(Weights(1.0), ONES, own(counted, 0.0), mode="autocast")
    assert step is None and report.verdict == "clean"
    assert taken == [torch.float32] * 4  # two here, two on the copies


def with_a_half_state(p: Tensor, state: Any, lr: float) -> None:
    """Keeps the gradient in FP16 by writing it into memory of that dtype."""
    kept = state.setdefault("kept", torch.zeros_like(p, dtype=torch.float16))
    kept.copy_(p.grad)
    p.sub_(kept.float().sign(), alpha=lr)


def test_a_write_into_half_memory_is_a_cast() -> None:
    step, report = scanned(Weights(1.0), [torch.full((1,), 2.0**-26)], own(with_a_half_state, 0.5))
    assert step is not None and step.source is not None
    assert (step.casts_to, step.source.text) == ("float16", "kept.copy_(p.grad)")
    assert report.verdict == "update-swallowed"


def test_a_cast_that_overflows_destroys_weights() -> None:
    """A gradient of 2^17 is inf in FP16, whose difference to itself is NaN."""

    def overflowing(p: Tensor, state: Any, lr: float) -> None:
        short = p.grad.half()
        p.sub_((short - short).float())

    step, report = scanned(Weights(1.0), [torch.full((1,), 2.0**17)], own(overflowing, 0.0), loss_scale=1.0)
    assert step is not None and (step.casts_to, step.updates[0].nan) == ("float16", 1)
    assert report.verdict == "update-swallowed"

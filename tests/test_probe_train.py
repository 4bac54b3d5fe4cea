"""Training steps under GradScaler: thresholds, skips and levels derived by hand, and nothing left behind."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ampdoctor.errors import ProbeError
from ampdoctor.facts.training import ScalerRun, ScalerSettings
from ampdoctor.load.workload import Workload
from ampdoctor.probe.plan import Plan
from ampdoctor.probe.train import train
from case_runner import assert_same, snapshot


class Line(nn.Module):
    """y = w x + 0, with w = 1: in FP16 its gradient is what the loss hands to it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(1, 1)
        nn.init.ones_(self.fc.weight)
        nn.init.zeros_(self.fc.bias)

    def forward(self, x: Tensor) -> Any:
        return self.fc(x)


def times(factor: float) -> Any:
    """A loss whose derivative by the model's output is ``factor``, computed in FP32."""
    return lambda model, x: (model(x).float() * factor).sum()


def run(
    model: nn.Module,
    batches: tuple[Any, ...],
    loss: Any,
    steps: int,
    *,
    init_scale: float = 65536.0,
    interval: int = 2000,
    lr: float = 0.0,
    build_optimizer: Any = None,
    **plan: Any,
) -> ScalerRun:
    """A run with SGD; asserts that it left everything as it was."""
    before = snapshot(model)
    build = build_optimizer or (lambda m: torch.optim.SGD(m.parameters(), lr=lr))
    workload = Workload("test", model, batches, loss, build_optimizer=build)
    settings = ScalerSettings(init_scale, 2.0, 0.5, interval)
    found = train(workload, Plan(device="cpu", **plan), settings, steps)
    assert_same(snapshot(model), before)
    return found


ONE = (torch.ones(1, 1),)


def scales(found: ScalerRun) -> list[float]:
    return [s.scale for s in found.steps]


def skipped(found: ScalerRun) -> list[int]:
    return [s.step for s in found.steps if s.skipped]


def test_it_halves_down_to_the_largest_scale_that_fits() -> None:
    """The output's gradient is 2^10 times the scale. FP16 holds 2^15 and not 2^16: the ceiling is 2^5."""
    found = run(Line(), ONE, times(1024.0), 13)
    assert scales(found) == [2.0**k for k in range(16, 5, -1)] + [32.0, 32.0]
    assert skipped(found) == list(range(11))
    assert {s.ceiling for s in found.steps} == {5}
    assert found.final_scale == 32.0
    assert (found.refusal, found.broken_weights, found.interrupted) == ("", (), False)
    assert (found.optimizer, found.parameter_dtypes) == ("SGD", ("float32",))


def test_a_skip_names_the_parameters_and_the_place_that_overflowed_first() -> None:
    found = run(Line(), ONE, times(1024.0), 1)
    (step,) = found.steps
    assert step.bad_parameters == ("fc.weight", "fc.bias")
    cause = step.cause
    assert cause is not None and cause.site is not None and cause.source is not None
    assert (cause.value, cause.site.phase, cause.site.op) == ("inf", "backward", "aten::_to_copy")
    assert cause.exact_value == 2.0**26
    assert "model(x).float() * factor" in cause.source.text


def test_a_step_that_is_taken_has_no_cause() -> None:
    (step,) = run(Line(), ONE, times(0.5), 1).steps
    assert (step.skipped, step.bad_parameters, step.cause, step.ceiling) == (False, (), None, 16)


def test_the_scale_grows_after_its_interval_and_falls_back_from_the_edge() -> None:
    """Ceiling 2^15: from 2^14 it grows to 2^15 after two steps, to 2^16 after two more, and is halved."""
    found = run(Line(), ONE, times(1.0), 6, init_scale=2.0**14, interval=2)
    assert scales(found) == [2.0**14, 2.0**14, 2.0**15, 2.0**15, 2.0**16, 2.0**15]
    assert skipped(found) == [4]


def test_a_level_below_one_is_measured_down_to_it() -> None:
    """A derivative of 2^18 needs a scale of 2^-3."""
    found = run(Line(), ONE, times(2.0**18), 6, init_scale=1.0)
    assert scales(found) == [1.0, 0.5, 0.25, 0.125, 0.125, 0.125]
    assert {s.ceiling for s in found.steps} == {-3}


def test_a_nan_has_no_scale_at_all() -> None:
    found = run(Line(), (torch.full((1, 1), float("nan")),), times(1.0), 3)
    assert skipped(found) == [0, 1, 2]
    assert [s.ceiling for s in found.steps] == [None, None, None]
    cause = found.steps[0].cause
    assert cause is not None
    assert (cause.origin, cause.value) == ("batch", "nan")


def test_batches_take_turns_and_each_has_its_own_threshold() -> None:
    """The gradient of the weight is the batch: 2^4 needs a scale of 2^11 at most, 1 one of 2^15."""
    batches = (torch.ones(1, 1), torch.full((1, 1), 16.0))
    found = run(Line(), batches, times(1.0), 4, init_scale=1024.0)
    assert [s.batch for s in found.steps] == [0, 1, 0, 1]
    assert [s.ceiling for s in found.steps] == [15, 11, 15, 11]


def test_the_weights_are_trained() -> None:
    """Each step of SGD at 2^-4 takes 2^-4 off w and off b, and so 2^-3 off the loss w + b."""
    found = run(Line(), ONE, times(1.0), 3, init_scale=2.0, lr=2.0**-4)
    assert [s.loss for s in found.steps] == [1.0, 0.875, 0.75]


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Any:
        return self.drop(self.norm(self.fc(x)))


def noisy_loss(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).float().square().mean() * 2.0**6


def test_it_trains_as_a_plain_loop_does_though_it_runs_skipped_steps_again() -> None:
    """Losses and scales to the last bit, with dropout, running statistics, AdamW and a growing scale."""
    torch.manual_seed(0)
    model, x = Noisy(), torch.randn(8, 4)
    plain = copy.deepcopy(model)
    found = run(
        model, (x,), noisy_loss, 24, interval=4, emulate="none",
        build_optimizer=lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2),
    )  # fmt: skip

    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", growth_interval=4)
    expected = []
    with torch.random.fork_rng():
        for step in range(24):
            torch.manual_seed(step)
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = noisy_loss(plain, x)
            expected.append((loss.item(), scaler.get_scale()))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert [(s.loss, s.scale) for s in found.steps] == expected
    assert 5 < len(skipped(found)) < 20
    assert len({s.loss for s in found.steps}) == 24


def test_torch_refuses_half_gradients_and_says_so() -> None:
    found = run(Line(), ONE, times(1.0), 5, mode="half")
    assert found.refusal == "Attempting to unscale FP16 gradients."
    assert (found.steps, found.parameter_dtypes, found.interrupted) == ((), ("float16",), False)


def test_a_step_that_destroys_the_weights_ends_the_run() -> None:
    def build(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=float("inf"))

    found = run(Line(), ONE, times(1.0), 5, init_scale=1.0, build_optimizer=build)
    assert found.broken_weights == ("fc.weight", "fc.bias")
    assert len(found.steps) == 1


def test_an_interrupted_run_keeps_its_steps() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return times(1.0)(model, x)

    calls: list[int] = []
    found = run(Line(), ONE, loss, 5, init_scale=1.0)
    assert (len(found.steps), found.requested, found.interrupted) == (2, 5, True)


def test_a_model_that_raises_ends_the_run_with_its_own_words() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        raise RuntimeError("no such shape")

    with pytest.raises(ProbeError, match="the model raises in step 0: RuntimeError: no such shape"):
        run(Line(), ONE, loss, 5)


def test_an_optimizer_of_other_parameters_cannot_train() -> None:
    def build(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)

    with pytest.raises(ProbeError, match="no parameter of the optimizer gets a gradient in step 0"):
        run(Line(), ONE, times(1.0), 5, build_optimizer=build)


def test_an_optimizer_that_needs_a_closure_cannot_be_scaled() -> None:
    def build(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(model.parameters())

    with pytest.raises(ProbeError, match="the optimizer's step raises: TypeError"):
        run(Line(), ONE, times(1.0), 5, init_scale=1.0, build_optimizer=build)


class Checkpointed(Line):
    """Its forward runs again in backward; its activations are 2^10 whatever the loss scale."""

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self._scaled, x, use_reentrant=False)

    def _scaled(self, x: Tensor) -> Any:
        return self.fc(x) * 1024.0


def test_a_forward_run_again_in_backward_is_no_gradient() -> None:
    """The gradients are the scale times 2^-2 and 2^8: the ceiling is 2^7."""
    (step,) = run(Checkpointed(), ONE, times(0.25), 1, init_scale=1.0).steps
    assert step.ceiling == 7


def test_a_fused_optimizer_is_called_in_a_skipped_step_and_still_skips_it() -> None:
    found = run(
        Line(), ONE, times(1.0), 3, build_optimizer=lambda m: torch.optim.Adam(m.parameters(), fused=True)
    )  # fmt: skip
    assert skipped(found) == [0]
    assert [s.loss for s in found.steps][:2] == [1.0, 1.0]
    assert found.broken_weights == ()

"""What a watched loop waits for: whether a fused optimizer skipped is not read in each step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ampdoctor.api.script_run import Examiner, Wanted
from ampdoctor.diagnose.policy import Policy
from ampdoctor.live.recorder import Recorder
from ampdoctor.live.watch import LoopWatch

__ampdoctor_calls_user_code__ = True


class OnDevice(Tensor):
    """A number that says it lies on a GPU, and counts how often it is asked for."""

    asked = 0
    device = property(lambda self: torch.device("cuda"))  # type: ignore[assignment]

    def __bool__(self) -> bool:
        OnDevice.asked += 1
        return bool(self.as_subclass(Tensor))


class Fused(torch.optim.SGD):
    """Skips inside, as torch's fused optimizers do."""

    _step_supports_amp_scaling = True
    found: Any = None

    @property
    def found_inf(self) -> Tensor:
        if self.found is None:
            raise AttributeError
        found: Tensor = self.found
        return found

    @found_inf.setter
    def found_inf(self, found: Tensor) -> None:
        self.found = found.as_subclass(OnDevice)

    @found_inf.deleter
    def found_inf(self) -> None:
        self.found = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        if not self.found.as_subclass(Tensor).item():
            for group in self.param_groups:
                for p in group["params"]:
                    p.sub_(group["lr"] * p.grad * self.grad_scale.reciprocal())  # type: ignore[attr-defined]


def asked_in(steps: int, wanted: Wanted, bad: tuple[int, ...] = ()) -> tuple[list[int], list[bool]]:
    """(how often a flag was read in each step, which steps the timeline calls skipped)."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = Fused(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    recorder = Recorder(__file__)
    examiner = Examiner(recorder, wanted, Policy())
    asked = []
    with LoopWatch(recorder, examiner.capture):
        for step in range(steps):
            OnDevice.asked = 0
            optimizer.zero_grad()
            loss = model(torch.full((2, 4), 3e38 if step in bad else 1.0)).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            asked.append(OnDevice.asked)
    recorder.read()
    return asked, [moment.skipped for moment in recorder.trace().timeline]


def test_after_the_first_step_was_examined_nothing_is_read_in_a_step() -> None:
    asked, skipped = asked_in(4, Wanted(), bad=(2,))
    assert asked == [1, 0, 0, 0]
    assert skipped == [False, False, True, False]


def test_until_nan_takes_one_look_a_step() -> None:
    asked, _ = asked_in(3, Wanted(until_nan=True))
    assert asked == [1, 1, 1]


def test_a_step_asked_for_by_its_number_needs_none() -> None:
    asked, _ = asked_in(3, Wanted(step=1))
    assert asked == [0, 0, 0]

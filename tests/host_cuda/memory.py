"""Memory of the device that runs out, at chosen ops of every stage of every measurement."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from asked import scenario
from torch import Tensor, nn

import host_cuda
from ampdoctor.diagnose.policy import Policy
from ampdoctor.errors import AmpDoctorError
from ampdoctor.facts.training import ScalerSettings
from ampdoctor.load.workload import Workload
from ampdoctor.probe.plan import Plan
from ampdoctor.probe.scan import probe
from ampdoctor.probe.steps.advance import advanced
from ampdoctor.probe.train import train
from ampdoctor.remedy.prescribe import prescribe
from case_runner import assert_same, snapshot

Measure = Callable[[Workload, Any], Any]


class Towers(nn.Module):
    """2^14 of one weight in the loss, and 2^-28 of the other: no loss scale serves both."""

    def __init__(self) -> None:
        super().__init__()
        self.loud, self.faint = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        for tower in (self.loud, self.faint):
            nn.init.ones_(tower.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.loud(x).float() * 2.0**14 + self.faint(x).float() * 2.0**-28


class Coarse(nn.Module):
    """Between 4,096 and 8,192 FP16's numbers lie 4 apart: what is left of the sum is far off."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return (self.linear(x) + 4096.0) - 4096.0


def overflowing() -> Workload:
    """Gradients that leave FP16 at 65,536, dropout, a norm and an optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(), nn.BatchNorm1d(8), nn.Linear(8, 1))
    return _workload(model, torch.randn(4, 8), lambda m, x: m(x).float().square().mean() * 1e4)


def parting() -> Workload:
    return _workload(Coarse(), torch.randn(4, 8), lambda m, x: m(x).float().square().mean())


def of_two_towers() -> Workload:
    return _workload(Towers(), torch.ones(1, 1), lambda m, x: m(x).sum())


def _workload(model: nn.Module, batch: Tensor, step: Any) -> Workload:
    return Workload("test", model, (batch,), step, build_optimizer=lambda m: torch.optim.Adam(m.parameters()))


def in_every_stage(make: Callable[[], Workload], measure: Measure) -> list[Any]:
    """Of each kind of stage that ``measure`` goes through, when it first does, at its first op, amid it and
    at its last: the stage, and the error that memory which runs out there becomes."""
    begun: list[tuple[str, int]] = []
    ran = 0

    def note(stage: str, *_: Any) -> None:
        nonlocal ran
        ran += host_cuda.run_out_at(0)
        begun.append((stage, ran))

    measure(make(), None)  # what is found out once in a process is known from here on
    host_cuda.run_out_at(0)
    measure(make(), note)
    ran += host_cuda.run_out_at(0)
    stages: dict[str, tuple[str, int, int]] = {}
    for (stage, first), (_, end) in zip(begun, [*begun[1:], ("", ran)], strict=True):
        if end > first:
            stages.setdefault(re.sub(r"\d[\d,.e+]*", "N", stage), (stage, first, end))
    errors = []
    for stage, first, end in stages.values():
        for op in sorted({first + 1, (first + end + 1) // 2, end}):
            work = make()
            before = snapshot(work.model)
            draws = [g.get_state() for g in torch.cuda.default_generators]
            host_cuda.run_out_at(op)
            try:
                measure(work, None)
                errors.append([stage, "", "", 0])
            except AmpDoctorError as error:
                errors.append([stage, error.message, error.hint, error.exit_code])
            assert_same(snapshot(work.model), before)
            now = [g.get_state() for g in torch.cuda.default_generators]
            assert all(torch.equal(d, n) for d, n in zip(draws, now, strict=True))
            assert torch._C._len_torch_dispatch_stack() == 0 and not torch.is_autocast_enabled("cuda")
    host_cuda.run_out_at(0)
    measure(make(), None)  # and it can be measured again
    return errors


@scenario
def memory_in_a_scan() -> Any:
    plan = Plan(device="cuda", loss_scale=65536.0)
    return in_every_stage(overflowing, lambda work, note: probe(work, plan, note))


@scenario
def memory_where_drift_is_looked_for() -> Any:
    plan = Plan(device="cuda", loss_scale=1.0, search_scale=False)
    return in_every_stage(parting, lambda work, note: probe(work, plan, note))


@scenario
def memory_in_training() -> Any:
    settings = ScalerSettings(2.0**24, 2.0, 0.5, 2000)
    return in_every_stage(overflowing, lambda work, note: train(work, Plan(device="cuda"), settings, 2, note))


@scenario
def memory_in_steps_before_a_scan() -> Any:
    settings = ScalerSettings(1024.0, 2.0, 0.5, 2000)
    plan = Plan(device="cuda")
    return in_every_stage(parting, lambda work, note: advanced(work, plan, settings, 2, note))


@scenario
def memory_in_a_prescription() -> Any:
    """Of a model for which a scan tries what else may help, and of formats for each module."""
    plan = Plan(device="cuda", loss_scale=16.0)
    formats = ("bf16", "fp32")
    return in_every_stage(
        of_two_towers, lambda work, note: prescribe(work, plan, Policy(), progress=note, formats=formats)
    )

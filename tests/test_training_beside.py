"""The same training in FP32, next to which a scaler's trouble is seen; and a scan of a step as it is then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ampdoctor.cli.main import run as command
from ampdoctor.errors import ProbeError
from ampdoctor.facts.training import torch_scaler
from ampdoctor.load.workload import Workload
from ampdoctor.probe.plan import Plan
from ampdoctor.probe.steps.advance import advanced
from ampdoctor.probe.steps.fp32_training import fp32_training
from ampdoctor.probe.train import train
from case_runner import CASES, assert_same, snapshot


class Line(nn.Module):
    """y = w x, with w = 1."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(1, 1, bias=False)
        nn.init.ones_(self.fc.weight)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Any:
        return self.fc(x)


def growing(model: nn.Module, x: Tensor) -> Tensor:
    """A loss of -w^2 / 2: the step of SGD at 15 makes w 16 times as large."""
    y = model(x).float()
    return -(y * y).sum() / 2


def workload(batches: tuple[Any, ...], loss: Any, lr: float) -> Workload:
    return Workload(
        "test", Line(), batches, loss, build_optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=lr)
    )


ONE = (torch.ones(1, 1),)
CPU = Plan(device="cpu")


def quiet(*_: Any) -> None:
    return None


def test_a_divergence_is_found_in_fp32_too() -> None:
    """w is 16^k: past 65,504 in step 4, and its square past FP32's end, 2^128, in step 16."""
    work = workload(ONE, growing, 15.0)
    before = snapshot(work.model)
    found = train(work, CPU, torch_scaler(1.0), 19)
    assert_same(snapshot(work.model), before)
    assert next(s.step for s in found.steps if s.ceiling is None) == 4
    assert found.beside is not None
    assert (found.beside.diverges_at, found.beside.failure) == (16, "")
    assert [s.loss for s in found.beside.steps[:3]] == [-0.5, -128.0, -32768.0]


def test_one_bad_batch_is_no_divergence() -> None:
    batches = (torch.ones(1, 1), torch.full((1, 1), float("nan")))
    beside = fp32_training(workload(batches, growing, 0.0), CPU, 4, quiet)
    assert [(s.batch, s.finite) for s in beside.steps] == [(0, True), (1, False), (0, True), (1, False)]
    assert beside.diverges_at is None


def test_a_scale_that_only_starts_too_high_needs_no_comparison() -> None:
    found = train(workload(ONE, lambda m, x: m(x).float().sum(), 0.0), CPU, torch_scaler(65536.0), 3)
    assert found.steps[0].skipped and found.beside is None


def test_an_exception_in_fp32_alone_is_told() -> None:
    def picky(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        if y.dtype == torch.float32:
            raise TypeError("half only")
        return y.float().sum() * 2.0**20

    found = train(workload(ONE, picky, 0.0), CPU, torch_scaler(1.0), 2)
    assert found.beside is not None
    assert (found.beside.steps, found.beside.failure) == ((), "step 0: TypeError: half only")


# ---------------------------------------------------------------- a step as it is then


def dropped(model: nn.Module, x: Tensor) -> Tensor:
    """Draws, so that a step with another seed has another loss."""
    drop: nn.Module = model.drop  # type: ignore[assignment]
    return drop(model(x.expand(64, 1)).float()).square().mean()


@pytest.mark.parametrize("steps", [1, 4])
def test_the_step_is_that_of_the_run(steps: int) -> None:
    """Weights, random draws and loss scale: the loss is the run's to the last bit."""
    trained = train(workload(ONE, dropped, 0.125), CPU, torch_scaler(2.0**20), steps + 1)
    work, plan = advanced(
        workload(ONE, dropped, 0.125), Plan(device="cpu", scaler="dynamic"), torch_scaler(2.0**20), steps
    )
    then = train(work, plan, torch_scaler(plan.loss_scale), 1).steps[0]
    expected = trained.steps[steps]
    assert (then.loss, then.scale, then.skipped) == (expected.loss, expected.scale, expected.skipped)
    assert work.title == f"test, step {steps}"


def test_the_optimizer_goes_on_from_its_state() -> None:
    def build(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)

    work = Workload("test", Line(), ONE, lambda m, x: m(x).float().sum(), build_optimizer=build)
    then, _ = advanced(work, CPU, torch_scaler(1.0), 2)
    assert then.build_optimizer is not None
    (state,) = then.build_optimizer(then.model).state.values()
    assert state["momentum_buffer"].item() == 1.5  # 1, then 0.5 + 1


def test_a_step_that_the_run_does_not_reach() -> None:
    def fails(model: nn.Module, x: Tensor) -> Tensor:
        if model.fc.weight.item() != 1.0:  # type: ignore[union-attr, operator]
            raise ValueError("moved")
        return model(x).float().sum()

    with pytest.raises(ProbeError, match="step 1 is not reached: the model raises ValueError: moved"):
        advanced(workload(ONE, fails, 1.0), CPU, torch_scaler(1.0), 3)


# ---------------------------------------------------------------- the commands


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The case of a run one of whose eight batches holds an empty sample."""
    case = CASES / "one_empty_batch" / "case.py"
    (tmp_path / "run.yaml").write_text(
        f"model: {{target: '{case}:build_model'}}\n"
        f"data: {{target: '{case}:build_batches', batches: 8}}\n"
        f"loss: {{target: '{case}:compute_loss'}}\n"
        "optimizer: {target: torch.optim:SGD, kwargs: {lr: 0.01}}\n"
        "precision: {device: cpu}\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run.yaml"


def test_the_scaler_names_the_batch_and_the_command(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["scaler", "run.yaml", "--steps", "14", "--format", "json", "-q"]) == 0
    document = json.loads(capsys.readouterr().out)
    (group,) = document["skips"]
    assert (group["batches"], group["count"], group["in_fp32_too"]) == ([5], 2, True)
    assert document["fp32"]["not_finite"] == [5, 13]
    assert "`ampdoctor scan run.yaml --after-steps 5`" in document["remedy"]


def test_that_command_finds_the_fault(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["scan", "run.yaml", "--after-steps", "5", "--format", "json", "-q"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"] == "forward-undefined"
    assert (report["first_fault"]["batch"], report["first_fault"]["samples"]) == (5, [11])


def test_steps_need_an_optimizer(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["scan", "run.yaml", "--set", "optimizer=null", "--after-steps", "5", "-q"]) == 2
    assert "--after-steps takes real training steps" in capsys.readouterr().err

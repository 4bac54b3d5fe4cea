"""What models do with autograd: functions of their own, checkpoints, hooks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from case_runner import candidate, lines_of, ops_of, scan
from model_parts import mean_square


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.gain = gain
        return x * x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return grad * (3 * x * x) * ctx.gain, None


class UsesCube(nn.Module):
    def __init__(self, gain: float) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.gain = gain

    def forward(self, x: Tensor) -> Tensor:
        return Cube.apply(self.linear(x), self.gain)


def test_a_custom_function_is_seen_inside() -> None:
    torch.manual_seed(0)
    trace, report = scan(UsesCube(1.0), torch.randn(3, 4), lambda m, x: mean_square(m(x)), loss_scale=64.0)
    assert report.verdict == "clean"
    assert ops_of(trace, "forward", "").count("aten::mul") == 2
    assert ops_of(trace, "backward", "").count("aten::mul") >= 4
    assert "return x * x * x" in lines_of(trace, "backward")  # backward ops carry their forward's line


def test_an_overflow_in_a_custom_backward_has_the_line_of_its_forward_and_its_own() -> None:
    torch.manual_seed(0)
    trace, report = scan(UsesCube(1e7), torch.randn(3, 4), lambda m, x: mean_square(m(x)), loss_scale=64.0)
    assert report.first_fault is not None
    assert (report.first_fault.phase, report.first_fault.op) == ("backward", "aten::mul")
    assert report.first_fault.source is not None
    assert report.first_fault.source.text == "return x * x * x"
    own = trace.births[0].backward_source
    assert own is not None
    assert own.text == "return grad * (3 * x * x) * ctx.gain, None"


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool, gain: float = 1.0) -> None:
        super().__init__()
        self.enter = nn.Linear(4, 4)
        self.block = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
        self.leave = nn.Linear(4, 1)
        self.reentrant = reentrant
        with torch.no_grad():
            self.block[2].weight *= gain

    def forward(self, x: Tensor) -> Tensor:
        h = checkpoint(self.block, self.enter(x), use_reentrant=self.reentrant)
        return self.leave(h)


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "non-reentrant"])
def test_activation_checkpointing_keeps_forward_and_recomputed_ops_apart(reentrant: bool) -> None:
    torch.manual_seed(0)
    trace, report = scan(
        Checkpointed(reentrant), torch.randn(3, 4), lambda m, x: mean_square(m(x)), loss_scale=64.0
    )
    assert report.verdict == "clean"
    sites = candidate(trace).sites
    forward = [r.site.module for r in sites if r.site.phase == "forward" and r.site.op == "aten::addmm"]
    assert forward == ["enter", "block.0", "block.2", "leave"]
    recomputed = [r.site.module for r in sites if r.recomputed and r.site.op == "aten::addmm"]
    assert recomputed == (["block.0", "block.2"] if reentrant else recomputed)
    assert set(recomputed) <= {"block.0", "block.2"}
    assert {p.name for p in candidate(trace).parameters if p.absmax} == {
        f"{name}.{kind}" for name in ("enter", "block.0", "block.2", "leave") for kind in ("weight", "bias")
    }
    backward = {r.site.module for r in sites if r.site.phase == "backward" and not r.recomputed}
    assert {"enter", "block.0", "block.2", "leave"} <= backward


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "non-reentrant"])
def test_an_overflow_under_checkpointing_is_one_forward_fault(reentrant: bool) -> None:
    torch.manual_seed(0)
    _, report = scan(
        Checkpointed(reentrant, gain=1e6), torch.randn(3, 4), lambda m, x: mean_square(m(x)), loss_scale=64.0
    )
    assert report.verdict == "forward-overflow"
    assert report.first_fault is not None
    assert report.first_fault.phase == "forward"
    # The weight itself, 0.35e6, leaves the range where autocast casts it.
    assert (report.first_fault.module, report.first_fault.op) == ("block.2", "aten::_to_copy")

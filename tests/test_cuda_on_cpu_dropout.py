"""Dropout is one op on CUDA, and so it is where a CPU emulates it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ampdoctor.facts.trace import Trace
from ampdoctor.probe.cuda.on_cpu import fused_dropout, run_like_cuda
from case_runner import ops_of, scan


class Drops(nn.Module):
    """Forty thousand, of which dropout makes 80,000 where it keeps them."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        self.linear, self.drop = nn.Linear(1, 1, bias=False), nn.Dropout(p, inplace)
        nn.init.constant_(self.linear.weight, 40_000.0)

    def forward(self, x: Tensor) -> Tensor:
        dropped: Tensor = self.drop(self.linear(x))
        return dropped


def loss(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).float().mean()


def reference_ops(trace: Trace) -> list[str]:
    reference = next(p for p in trace.passes if p.role == "reference")
    return [r.site.op for r in reference.sites if (r.site.phase, r.site.module) == ("forward", "drop")]


def test_what_overflows_in_it_is_born_in_its_one_op() -> None:
    trace, report = scan(Drops(), torch.ones(64, 1), loss, loss_scale=1.0)
    assert report.verdict == "forward-overflow" and report.first_fault is not None
    assert (report.first_fault.module, report.first_fault.op) == ("drop", "aten::native_dropout")
    (birth,) = (b for b in trace.births if b.site is not None and b.site.phase == "forward")
    assert (birth.exact_value, birth.reference, birth.reference_value) == (80_000.0, "finite", 80_000.0)
    assert 16 < birth.count < 48  # those that it kept
    assert ops_of(trace, "forward", "drop") == reference_ops(trace) == ["aten::native_dropout"]


def test_the_scale_of_what_it_keeps_is_not_rounded() -> None:
    """1 / 0.9 is 1.11111, and 1.11133 as a half: 1,506 times that are 1,673.3 and 1,673.7."""
    x = torch.full((64,), 1506.0, dtype=torch.float16)
    torch.manual_seed(0)
    result = run_like_cuda(torch.ops.aten.native_dropout.default, (x, 0.1, True), {})
    assert set(result.outputs[0].tolist()) == {0.0, 1673.0}
    torch.manual_seed(0)
    assert set(F.dropout(x, 0.1).tolist()) == {0.0, 1674.0}


@pytest.mark.parametrize(
    ("model", "ops"),
    [
        (Drops(inplace=True), ["aten::bernoulli_", "aten::div_", "aten::mul_"]),
        (Drops(p=0.0), []),
        (Drops(p=1.0), ["aten::zeros", "aten::mul"]),
        (Drops().eval(), []),
    ],
    ids=["in place", "nothing", "everything", "eval"],
)
def test_where_cuda_has_no_such_op(model: nn.Module, ops: list[str]) -> None:
    trace, _ = scan(model, torch.ones(4, 1) / 100, loss, loss_scale=1.0)
    assert ops_of(trace, "forward", "drop") == reference_ops(trace) == ops


def test_the_cpu_s_own_stays_where_it_is_asked_for() -> None:
    trace, _ = scan(Drops(), torch.ones(4, 1) / 100, loss, loss_scale=1.0, emulate="cpu")
    assert ops_of(trace, "forward", "drop") == reference_ops(trace)
    assert "aten::native_dropout" not in ops_of(trace, "forward", "drop")


def test_it_draws_and_differentiates_as_before() -> None:
    def drawn() -> tuple[Tensor, Tensor, Tensor]:
        torch.manual_seed(1)
        x = torch.ones(100, requires_grad=True)
        y = F.dropout(x, 0.25)
        (y * 3).sum().backward()
        assert x.grad is not None
        return y.detach(), x.grad, torch.rand(1)

    composite = drawn()
    with fused_dropout():
        with fused_dropout():
            pass
        fused = drawn()
    assert all(torch.allclose(a, b) for a, b in zip(composite, fused, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(composite, drawn(), strict=True))

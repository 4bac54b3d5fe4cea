"""Softmax under autocast: from FP16 it is one op on CUDA, a cast and an op on a CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from case_runner import ops_of, scan

BRAIN, HALF = torch.bfloat16, torch.float16


class Chooses(nn.Module):
    """Two equal logits: probabilities of 1/2, in FP32."""

    def __init__(self, function: str, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.function, self.dtype = function, dtype
        self.logits = nn.Linear(1, 2, bias=False)
        nn.init.ones_(self.logits.weight)

    def forward(self, x: Tensor) -> Tensor:
        chosen: Tensor = getattr(torch, self.function)(self.logits(x), dim=-1, dtype=self.dtype)
        assert chosen.dtype is torch.float32
        return chosen


def first(model: nn.Module, p: Tensor) -> Tensor:
    """2^16 of the first, 2^20 with a loss scale of 16: of a softmax p (g - sum of p g) is 2^19 - 2^18 then,
    of its log g - p * sum of g is 2^20 - 2^19."""
    return model(p)[0, 0] * 2.0**16


@pytest.mark.parametrize(("function", "exact"), [("softmax", 2.0**18), ("log_softmax", 2.0**19)])
@pytest.mark.parametrize("dtype", [None, torch.float32], ids=str)
def test_its_gradient_overflows_in_its_own_op(function: str, exact: float, dtype: torch.dtype | None) -> None:
    trace, report = scan(Chooses(function, dtype), torch.ones(1, 1), first, loss_scale=16.0)
    assert report.verdict == "backward-overflow"
    assert report.first_fault is not None
    assert report.first_fault.op == f"aten::_{function}_backward_data"
    (birth,) = (b for b in trace.births if b.site is not None)
    assert birth.exact_value is not None and abs(birth.exact_value) == pytest.approx(exact, rel=1e-8)
    assert birth.dtype == "float16"
    assert ops_of(trace, "forward", "")[:1] == [f"aten::_{function}"]


def test_bfloat16_is_cast_first() -> None:
    trace, _ = scan(Chooses("softmax"), torch.ones(1, 1), first, loss_scale=1.0, dtype="bfloat16")
    assert ops_of(trace, "forward", "")[:2] == ["aten::_to_copy", "aten::_softmax"]


def test_inside_an_op_of_the_user_s_which_nothing_looks_into() -> None:
    @torch.library.custom_op("ampdoctor_tests::chosen", mutates_args=())
    def chosen(logits: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=HALF):
            return torch.softmax(logits, dim=-1)

    class Outside(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            p: Tensor = chosen(super().forward(x).detach())
            assert p.tolist() == [[0.5, 0.5]]
            return super().forward(x).float() + p

    model = Outside(1, 2, bias=False)
    nn.init.ones_(model.weight)
    _, report = scan(model, torch.ones(1, 1), lambda m, x: m(x).sum(), loss_scale=1.0)
    assert report.verdict == "clean"

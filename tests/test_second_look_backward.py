"""Births in backward, zeros that became faults, casts of autocast."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from probe_helpers import Calls, birth_ops, text, the_birth, traced
from second_looks import halved

# ---------------------------------------------------------------- zeros that became faults


def test_the_op_that_flushed_to_zero_what_is_divided_by() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        small = x * 1e-4
        tiny = small * 1e-4
        kept = tiny + 0.0
        return 1.0 / kept

    birth = the_birth(halved(forward, torch.tensor([1.0, 1e4])))
    # 1e-8 is below 2^-25 = 2.98e-8; 1e4 * 1e-8 = 1e-4 is kept.
    assert (birth.value, birth.index, birth.rerun, birth.reference) == ("inf", (0,), "inf", "finite")
    assert birth.zero_origin is not None
    assert birth.zero_origin.site.key == "forward||aten::mul|1|0"
    assert birth.zero_origin.zeros == 1
    assert text(birth.zero_origin) == "tiny = small * 1e-4"
    assert birth.zero_origin.reference_absmax == pytest.approx(1e-4)


def test_the_logarithm_of_a_flushed_sum() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        return (x * x).sum(-1).log()

    birth = the_birth(halved(forward, torch.full((1, 4), 1e-5)))
    assert birth.site is not None and birth.zero_origin is not None
    assert (birth.site.op, birth.zero_origin.site.op) == ("aten::log", "aten::mul")


def test_a_zero_that_float32_has_too_has_no_origin() -> None:
    birth = the_birth(halved(lambda self, x: 1.0 / (x * 1.0), torch.tensor([0.0])))
    assert birth.zero_origin is None


def test_a_cast_that_flushed() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        low = (x * 1e-5 * 1e-3).half()
        return 1.0 / low

    trace = traced(Calls(forward), torch.ones(2), mode="autocast")
    birth = the_birth(trace)
    assert birth.zero_origin is not None
    assert birth.zero_origin.site.op == "aten::_to_copy"
    assert text(birth.zero_origin) == "low = (x * 1e-5 * 1e-3).half()"


# ---------------------------------------------------------------- casts of autocast


def test_an_input_that_autocast_casts_out_of_range() -> None:
    linear = nn.Linear(2, 1, bias=False)
    nn.init.ones_(linear.weight)
    trace = traced(
        Calls(lambda self, x: self.linear(x), linear=linear), torch.tensor([[1.0, 70000.0]]), mode="autocast"
    )
    birth = the_birth(trace)
    assert birth.site is not None
    assert (birth.site.op, birth.site.module, birth.implicit_cast) == ("aten::_to_copy", "linear", True)
    assert (birth.exact_value, birth.reference, birth.index) == (70000.0, "absent", (0, 1))
    assert birth.reaches_gradients == ("linear.weight",)


# ---------------------------------------------------------------- backward


class Rooted(nn.Module):
    def __init__(self, start: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([4.0, start]))

    def forward(self, x: Tensor) -> Tensor:
        return (self.w * x).sqrt()


def test_a_fault_of_backward_alone_has_the_line_of_its_forward() -> None:
    trace = traced(Rooted(0.0), torch.ones(2), mode="none")
    birth = the_birth(trace)
    assert birth.site is not None
    # d sqrt(u) / du = 1 / (2 sqrt(u)): infinite at 0, in float32 as well.
    assert (birth.site.phase, birth.forward_op, birth.value) == ("backward", "aten::sqrt", "inf")
    assert text(birth) == "return (self.w * x).sqrt()"
    assert (birth.index, birth.reference, birth.reaches_loss) == ((1,), "same", False)
    assert birth.reaches_gradients == ("w",)
    assert birth.backward_source is None


def test_a_forward_fault_is_not_counted_again_in_its_own_backward() -> None:
    # log(0) = -inf, and its derivative 1/0 = inf: one fault.
    class Logs(Rooted):
        def forward(self, x: Tensor) -> Tensor:
            return (self.w * x).log()

    trace = traced(Logs(0.0), torch.ones(2), mode="none")
    assert birth_ops(trace) == [("inf", "log")]
    assert trace.births[0].reaches_gradients == ("w",)


class Looked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(3, 2, sparse=True)
        nn.init.ones_(self.table.weight)

    def forward(self, x: Tensor) -> Tensor:
        return (self.table(torch.tensor([0, 2, 2])) * x).float() * 4.0


def test_a_sparse_gradient_carries_it_on() -> None:
    trace = traced(Looked(), torch.ones(1), mode="half", loss_scale=65536.0)
    assert [(b.origin, b.loss_scale) for b in trace.births] == [("op", 65536.0)]
    assert trace.births[0].reaches_gradients == ("table.weight",)


class ByHand(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] / 0.0


def test_a_fault_in_a_backward_that_the_user_wrote_has_both_lines() -> None:
    class Uses(Rooted):
        def forward(self, x: Tensor) -> Tensor:
            return ByHand.apply(self.w * x)

    birth = the_birth(traced(Uses(1.0), torch.ones(2), mode="none"))
    assert birth.site is not None
    assert (birth.site.op, text(birth)) == ("aten::div", "return x * 1.0")
    assert birth.backward_source is not None
    assert birth.backward_source.text == "return gradients[0] / 0.0"


class Steep(nn.Module):
    """The gradient that arrives at the float16 tensor ``h`` is 4 times the loss scale."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        h = (self.w * x).half()
        return h.float() * 4.0


def test_a_scale_that_is_too_high_is_a_fault_at_that_scale_only() -> None:
    trace = traced(Steep(), torch.ones(2), mode="autocast", loss_scale=65536.0)
    assert [(b.loss_scale, b.exact_value, b.reference) for b in trace.births] == [
        (65536.0, 4 * 65536.0, "absent")
    ]
    assert traced(Steep(), torch.ones(2), mode="autocast", loss_scale=8192.0).births == ()  # 4 * 8192 = 32768


def test_a_fault_at_any_scale_is_found_behind_one_of_a_high_scale() -> None:
    class Both(Steep):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + (self.w - 1.0).sqrt()

    trace = traced(Both(), torch.ones(2), mode="autocast", loss_scale=65536.0)
    found = {(b.loss_scale, b.forward_op) for b in trace.births}
    assert found == {(65536.0, "aten::_to_copy"), (65536.0, "aten::sqrt"), (1.0, "aten::sqrt")}

"""Births through in-place writes, views and reused memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from probe_helpers import Calls, birth_ops, the_birth
from second_looks import halved


def test_an_in_place_op_is_judged_by_what_it_read() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        y = x.clone()
        y.mul_(y)
        return y

    birth = the_birth(halved(forward, torch.tensor([2.0, 300.0])))
    assert birth.site is not None
    assert (birth.site.op, birth.index, birth.exact_value) == ("aten::mul_", (1,), 90000.0)
    assert [(o.absmax, o.infs) for o in birth.operands] == [(300.0, 0), (300.0, 0)]


def test_an_in_place_op_on_what_was_born_before_makes_no_birth() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        y = x * x
        y.mul_(0.0)
        return y

    assert birth_ops(halved(forward, torch.tensor([300.0]))) == [("inf", "mul")]


def test_a_write_into_a_part_is_found_in_the_whole() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        table = torch.zeros(2, 2, dtype=x.dtype)
        table[1] = x * x
        return table + 0.0

    trace = halved(forward, torch.tensor([1.0, 300.0]))
    assert birth_ops(trace) == [("inf", "mul")]
    assert [s.op for s in trace.births[0].path[:2]] == ["aten::copy_", "aten::add"]


def test_a_write_into_another_part_leaves_it_there() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        table = torch.zeros(2, 2, dtype=x.dtype)
        table[0] = x * x
        table[1] = 1.0
        return table + 0.0

    trace = halved(forward, torch.tensor([1.0, 300.0]))
    assert birth_ops(trace) == [("inf", "mul")]
    assert trace.births[0].reaches_loss


def test_a_value_written_over_goes_nowhere() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        y = x * x
        y.zero_()
        return y + x

    trace = halved(forward, torch.tensor([300.0]))
    assert [(b.value, b.reaches_loss) for b in trace.births] == [("inf", False)]
    assert trace.births[0].absorbed_at is not None
    assert trace.births[0].absorbed_at.op == "aten::zero_"


def test_views_carry_it_on() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        y = (x * x).reshape(2, 2).t()[1:].unsqueeze(0).expand(3, 1, 2)
        return y + 0.0

    trace = halved(forward, torch.tensor([1.0, 300.0, 1.0, 1.0]))
    assert birth_ops(trace) == [("inf", "mul")]
    assert [s.op for s in trace.births[0].path[:1]] == ["aten::add"]


def test_an_op_that_returns_nothing_is_seen_by_what_it_wrote() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        parts = [x.clone(), x.clone() * 0.5]
        torch._foreach_mul_(parts, 300.0)
        return parts[0] + parts[1]

    trace = halved(forward, torch.tensor([1.0, 300.0]))
    assert birth_ops(trace) == [("inf", "_foreach_mul_")]  # 150 * 300 = 45000 is kept
    birth = trace.births[0]
    assert birth.site is not None
    assert (birth.site.output, birth.index, birth.exact_value) == (0, (1,), 90000.0)


def test_statistics_that_an_op_updates_beside_its_outputs() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        mean, variance = torch.zeros(1), torch.ones(1)
        y = (x * 300.0).float()
        torch._native_batch_norm_legit(y, None, None, mean, variance, True, 1.0, 1e-5)
        return mean + 1.0

    trace = halved(forward, torch.tensor([[300.0], [1.0]]))
    assert birth_ops(trace) == [("inf", "mul")]
    assert trace.births[0].reaches_loss


def test_nan_out_of_an_op_that_mixes_elements_has_all_infinities_for_parents() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        y = x * x
        return y.float().cumsum(0) - y.flip(0).float().cumsum(0)

    assert birth_ops(halved(forward, torch.tensor([300.0, 1.0, 1.0]))) == [("inf", "mul")]

    def transformed(self: Calls, x: Tensor) -> Tensor:
        return torch.fft.fft((x * x).float()).abs()

    assert birth_ops(halved(transformed, torch.tensor([1.0, 300.0, 1.0, 1.0]))) == [("inf", "mul")]


@pytest.fixture
def memory_full_of_nan() -> Any:
    """Fresh memory holds NaN, as it may in any run."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("memory_full_of_nan")
def test_fresh_memory_that_is_filled_is_no_fault() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        out = torch.empty(4, dtype=x.dtype)
        out[:2] = x
        out[2:] = x * x
        return out + 0.0

    trace = halved(forward, torch.tensor([1.0, 300.0]))
    assert birth_ops(trace) == [("inf", "mul")]


@pytest.mark.usefixtures("memory_full_of_nan")
def test_fresh_memory_that_is_read_is_a_fault_of_the_op_that_reads_it() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        out = torch.empty(2, dtype=x.dtype)
        out[:1] = x
        return out * 2.0

    trace = halved(forward, torch.tensor([1.0]))
    assert birth_ops(trace) == [("nan", "mul")]
    assert (trace.births[0].index, trace.births[0].reference) == ((1,), "same")

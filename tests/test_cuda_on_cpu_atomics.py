"""Additions that CUDA makes one by one in half, and powers that it makes of products in half."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from case_runner import scan
from half_ops import LikeCuda, half

INF = math.inf
ONES = torch.ones(4).half()
SAME = torch.zeros(4, dtype=torch.int64)


def like_cuda(function: Any) -> Any:
    with LikeCuda():
        return function()


# --- each addition rounds -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "added",
    [
        lambda: half(2048.0).scatter_add(0, SAME, ONES),
        lambda: half(2048.0).scatter_add_(0, SAME, ONES),
        lambda: half(2048.0).index_add(0, SAME, ONES),
        lambda: half(2048.0).index_add_(0, SAME, ONES),
        lambda: half(2048.0).index_add_(0, SAME, 2 * ONES, alpha=0.5),
        lambda: half(2048.0).scatter_reduce(0, SAME, ONES, "sum"),
        lambda: half(2048.0)[0].index_add(0, SAME[0], ONES[0]).reshape(1),
    ],
)
def test_ones_added_to_2048_in_half_leave_it(added: Any) -> None:
    """2,049 is no number of FP16, and the tie goes to the even one: 2,048. Summed first it would be 2,052."""
    assert like_cuda(added).tolist() == [2048.0]


def test_a_sum_that_runs_over_on_its_way_does_not_come_back() -> None:
    values, places = half(60000.0, 60000.0, -60000.0, 1.0), torch.tensor([0, 0, 0, 1])
    assert like_cuda(lambda: torch.zeros(2).half().index_add(0, places, values)).tolist() == [INF, 1.0]
    values = half(60000.0, -60000.0, 60000.0, 1.0)
    assert like_cuda(lambda: torch.zeros(2).half().index_add(0, places, values)).tolist() == [60000.0, 1.0]


def test_the_mean_of_many_is_divided_by_a_count_that_stopped_at_2048() -> None:
    places = torch.zeros(4096, dtype=torch.int64)
    values = torch.full((4096,), 0.25).half()  # 0.25 x 2,048 is 512; from there on a quarter is half a step
    mean = like_cuda(
        lambda: torch.zeros(1).half().scatter_reduce(0, places, values, "mean", include_self=False)
    )
    assert mean.tolist() == [0.25]  # 512 / 2,048, where the sum is 1,024 of 4,096


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_where_nothing_rounds_it_is_torch_s_own(dim: int) -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(-9, 9, (4, 5, 3), generator=draw).half()
    source = torch.randint(-9, 9, (6, 7, 3), generator=draw).half()
    index = torch.randint(0, 3, (2, 5, 2), generator=draw)
    expected = x.float().scatter_add(dim, index, source.float())
    assert torch.equal(like_cuda(lambda: x.scatter_add(dim, index, source)).float(), expected)
    rows = torch.randint(0, x.shape[dim], (8,), generator=draw)
    source = torch.randint(-9, 9, (4, 5, 3), generator=draw).half().index_select(dim, rows * 0)
    expected = x.float().index_add(dim, rows, source.float())
    assert torch.equal(like_cuda(lambda: x.index_add(dim, rows, source)).float(), expected)


def test_an_index_that_is_not_there_is_torch_s_to_refuse() -> None:
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        like_cuda(lambda: half(1.0).scatter_add(0, SAME + 1, ONES))


class Counts(nn.Module):
    """The mean over the neighbours of each node, their number counted in the dtype of the messages."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        message = self.linear(x)
        node = torch.zeros(len(x), dtype=torch.int64)
        total = torch.zeros(2, 1).index_add(0, node, message.float())
        count = message.new_zeros(2, 1).index_add(0, node, torch.ones_like(message))
        return (total / count.float().clamp(min=1)).sum()


def test_the_gradient_of_a_gather_is_added_one_by_one() -> None:
    table = half(1.0).requires_grad_()
    with LikeCuda():
        table.gather(0, torch.zeros(4096, dtype=torch.int64)).sum().backward()
    assert table.grad is not None and table.grad.tolist() == [2048.0]


def test_a_count_in_half_that_stopped_is_named_where_it_is_counted() -> None:
    _, report = scan(Counts(), torch.ones(8192, 4), lambda m, x: m(x), loss_scale=1.0)
    assert report.verdict == "drift"
    named = next(f for f in report.findings if f.code == "AMP108")
    assert named.op == "aten::index_add"
    assert named.source is not None and named.source.text.startswith("count = ")


# --- powers -------------------------------------------------------------------------------------------------


def test_an_inverse_square_goes_through_the_square_in_half() -> None:
    assert like_cuda(lambda: half(300.0) ** -2).tolist() == [
        0.0
    ]  # 1.1e-5 is a number of FP16; 90,000 is none
    assert like_cuda(lambda: half(16.0) ** -2).tolist() == [2.0**-8]


def test_a_third_power_rounds_the_square_first() -> None:
    # 67^2 = 4,489 rounds to 4,488 (steps of 4); times 2^-6 x 67 it is 4,698.4, and 4,489 would give 4,699.4
    x = half(67.0 / 64)
    assert like_cuda(lambda: x**3).tolist() == half(4488 / 4096 * 67 / 64).tolist()
    assert like_cuda(lambda: half(67.0 / 64).pow_(3)).tolist() == half(4488 / 4096 * 67 / 64).tolist()


def test_an_exponent_is_rounded_to_half_as_well() -> None:
    """0.3 becomes 0.30004883: of 2^-24, the smallest number, 0.0068 %."""
    assert like_cuda(lambda: half(2.0**-24) ** 0.3).tolist() == half(2.0 ** (-24 * 0.300048828125)).tolist()

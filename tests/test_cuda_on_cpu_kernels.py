"""Ops that a CPU has no half kernel for, and what is left to the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ampdoctor.probe.cuda.on_cpu import EmulatedRefusal
from half_ops import DOUBLE, HALF, SINGLE, LikeCuda, aten, half, run


def test_an_op_without_a_half_kernel_on_the_cpu_is_computed_in_float32() -> None:
    x = torch.ones(1, 1, 2, 2, 2, dtype=HALF)
    with pytest.raises(RuntimeError, match="not implemented for"):
        F.avg_pool3d(x, 2)
    result = run(aten.avg_pool3d.default, x, [2, 2, 2])
    assert result.outputs.dtype is HALF
    assert result.outputs.tolist() == [[[[[1.0]]]]]


def test_an_op_of_random_numbers_without_a_half_kernel_says_how_it_ran() -> None:
    counts, chance = half(8.0, 8.0), half(0.0, 1.0)
    with pytest.raises(RuntimeError, match="not implemented for"):
        torch.binomial(counts, chance)
    result = run(aten.binomial.default, counts, chance)
    assert result.outputs.tolist() == [0.0, 8.0]
    assert result.outputs.dtype is HALF
    assert result.how == "no half kernel"


def test_decompositions_fail_in_half_precision_as_they_do_on_cuda() -> None:
    with pytest.raises(RuntimeError, match="Half"):
        run(aten.linalg_inv_ex.default, torch.eye(2, dtype=HALF))
    assert run(aten.linalg_inv_ex.default, torch.eye(2)).how == "native"


def test_what_only_the_cpu_can_do_in_half_precision_is_refused() -> None:
    with pytest.raises(EmulatedRefusal, match="aten::histc"):
        run(aten.histc.default, half(1.0, 2.0))
    assert run(aten.histc.default, torch.ones(2)).how == "native"


def test_views_share_memory_and_moves_are_not_rounded() -> None:
    x = torch.arange(6, dtype=HALF).view(2, 3)
    transposed = run(aten.t.default, x)
    assert transposed.outputs.data_ptr() == x.data_ptr()
    assert transposed.how == "native"
    for func, args in (
        (aten.clone.default, (x,)),
        (aten.cat.default, ([x, x],)),
        (aten.index_select.default, (x, 0, torch.tensor([1]))),
        (aten.where.self, (x > 1, x, x)),
        (aten.relu.default, (x,)),
        (aten.nan_to_num.default, (half(float("inf")),)),
    ):
        assert run(func, *args).unrounded == (None,)
    assert run(aten.nan_to_num.default, half(float("inf"))).outputs.tolist() == [65504.0]


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE, torch.complex64, torch.int64])
def test_other_dtypes_run_natively(dtype: torch.dtype) -> None:
    x = torch.ones(2, 2, dtype=dtype)
    result = run(aten.mm.default, x, x)
    assert result.outputs.dtype is dtype
    assert result.how == "native"


def test_sparse_tensors_are_left_to_the_cpu() -> None:
    x = torch.eye(2, dtype=HALF).to_sparse()
    result = run(aten.mul.Tensor, x, x)
    assert result.how == "left"
    assert result.outputs.to_dense().tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_tensors_with_a_dispatch_of_their_own_are_left_to_it() -> None:
    class Wrapped(Tensor):
        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Tensor:
            return torch.full((1,), 42.0, dtype=HALF)

    x = half(1.0).as_subclass(Wrapped)
    result = run(aten.mul.Tensor, x, x)
    assert result.outputs.tolist() == [42.0]
    assert result.how == "left"


def test_random_numbers_are_those_of_the_half_kernel() -> None:
    torch.manual_seed(0)
    expected = torch.empty(4096, dtype=HALF).exponential_()
    torch.manual_seed(0)
    result = run(aten.exponential_.default, torch.empty(4096, dtype=HALF))
    assert torch.equal(result.outputs, expected)


def test_dropout_drops_the_same_elements() -> None:
    x = torch.ones(1000, dtype=HALF)
    torch.manual_seed(0)
    expected = F.dropout(x, 0.25)
    torch.manual_seed(0)
    with LikeCuda():
        assert torch.equal(F.dropout(x, 0.25), expected)


def test_empty_and_zero_dimensional_tensors() -> None:
    empty = run(aten.mm.default, torch.ones(0, 3, dtype=HALF), torch.ones(3, 2, dtype=HALF))
    assert (tuple(empty.outputs.shape), empty.outputs.dtype) == ((0, 2), HALF)
    scalar = run(aten.mul.Tensor, torch.tensor(300.0, dtype=HALF), torch.tensor(300.0, dtype=HALF))
    assert scalar.outputs.item() == float("inf")


def test_inference_mode() -> None:
    with torch.inference_mode(), LikeCuda() as like_cuda:
        y = F.linear(half([256.0, 2.0]), half([256.0, -8.0]))
    assert y.tolist() == [[float("inf")]]
    assert "rounded" in like_cuda.how.values()

"""Half precision on a CPU as a GPU computes it: float32 inside, one rounding per result."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ampdoctor.probe.cuda.on_cpu import cuda_autocast_policy, place
from half_ops import BRAIN, DOUBLE, HALF, SINGLE, LikeCuda, aten, half, run


def test_a_product_past_65520_becomes_inf_and_shows_its_exact_value() -> None:
    result = run(aten.mm.default, half([256.0, 2.0]), half([256.0], [-8.0]))
    assert result.outputs.tolist() == [[float("inf")]]
    assert result.unrounded[0] is not None
    assert result.unrounded[0].tolist() == [[65520.0]]
    assert result.how == "rounded"


def test_a_sum_that_passes_through_65536_and_comes_back_is_finite() -> None:
    result = run(aten.mm.default, half([256.0, 256.0]), half([256.0], [-255.0]))
    assert result.outputs.tolist() == [[256.0]]


def test_a_product_of_2_to_the_minus_26_is_flushed_and_shows_its_exact_value() -> None:
    result = run(aten.mul.Tensor, half(2.0**-13), half(2.0**-13))
    assert result.outputs.tolist() == [0.0]
    assert result.unrounded[0] is not None
    assert result.unrounded[0].tolist() == [2.0**-26]


def test_ties_go_to_even() -> None:
    result = run(aten.add.Tensor, half(1.0, 1.0 + 2.0**-10), half(2.0**-11, 2.0**-11))
    assert result.outputs.tolist() == [1.0, 1.0 + 2.0**-9]


def test_a_long_sum_does_not_stick_at_2048() -> None:
    # In half precision 2048 + 1 is 2048.
    result = run(aten.sum.default, torch.ones(4096, dtype=HALF))
    assert result.outputs.item() == 4096.0


def test_addmm_rounds_bias_and_product_together() -> None:
    # 2048 + (1 * 1 + 1 * 0.5) is 2049.5, and the nearest half numbers are 2048 and 2050.
    result = run(aten.addmm.default, half([2048.0]), half([1.0, 1.0]), half([1.0], [0.5]))
    assert result.outputs.tolist() == [[2050.0]]
    assert result.unrounded[0] is not None
    assert result.unrounded[0].tolist() == [[2049.5]]


def test_bfloat16_rounds_to_bfloat16() -> None:
    x = torch.tensor([1.0, 3e38], dtype=BRAIN)
    result = run(aten.add.Tensor, x, torch.tensor([2.0**-8, 3e38], dtype=BRAIN))
    assert result.outputs.dtype is BRAIN
    assert result.outputs.tolist() == [1.0, float("inf")]


def test_python_numbers_are_not_rounded_before_use() -> None:
    assert run(aten.mul.Tensor, half(2.0**-10), 1e6).outputs.tolist() == [976.5]
    assert run(aten.add.Tensor, half(1.0), 1e-8).outputs.tolist() == [1.0]


def test_a_zero_dimensional_float32_tensor_of_the_device_is_rounded_before_use_and_does_not_promote() -> None:
    with cuda_autocast_policy():
        result = run(aten.mul.Tensor, half(2.0**-10), torch.tensor(1e6, device="cpu"))
    assert result.outputs.dtype is HALF
    assert result.outputs.tolist() == [float("inf")]


def test_a_zero_dimensional_float32_tensor_of_the_host_is_read_in_float32() -> None:
    result = run(aten.mul.Tensor, half(2.0**-10), torch.tensor(1e6))
    assert result.outputs.dtype is HALF
    assert result.outputs.tolist() == [976.5]  # 976.5625, rounded to a multiple of 0.5


@pytest.mark.parametrize(
    "move", [lambda t, x: t.to(x.device), lambda t, x: t.to(x) * 2, lambda t, x: t + x.sum()]
)
def test_what_is_moved_to_the_device_or_made_of_something_there_lies_there(move: Any) -> None:
    with cuda_autocast_policy():
        x = torch.ones(1)
        place((x,))
        with LikeCuda():
            result = half(2.0**-10) * move(torch.tensor(1e6), x)
    assert result.tolist() == [float("inf")]


def test_a_host_scalar_divides_in_float32_and_is_divided_in_half() -> None:
    million = torch.tensor(1e6)
    assert run(aten.div.Tensor, half(2000.0), million).outputs.tolist() == half(0.002).tolist()
    assert run(aten.div.Tensor, million, half(2000.0)).outputs.tolist() == [float("inf")]


def test_two_zero_dimensional_tensors_promote() -> None:
    result = run(aten.mul.Tensor, torch.tensor(2.0, dtype=HALF), torch.tensor(65536.0))
    assert result.outputs.dtype is SINGLE
    assert result.outputs.item() == 131072.0


def test_a_float32_matrix_promotes() -> None:
    result = run(aten.add.Tensor, half(1.0), torch.tensor([2.0**-20]))
    assert result.outputs.dtype is SINGLE
    assert result.unrounded == (None,)


def test_integers_do_not_promote() -> None:
    result = run(aten.mul.Tensor, half(300.0), torch.tensor([300]))
    assert result.outputs.dtype is HALF
    assert result.outputs.tolist() == [float("inf")]
    assert result.unrounded[0] is not None
    assert result.unrounded[0].tolist() == [90000.0]


def test_a_casts_exact_value_is_its_input() -> None:
    x = torch.tensor([70000.0, 1e-9])
    result = run(aten._to_copy.default, x, dtype=HALF)
    assert result.outputs.tolist() == [float("inf"), 0.0]
    assert result.unrounded[0] is x


def test_an_integer_that_half_cannot_hold_shows_its_value() -> None:
    result = run(aten._to_copy.default, torch.tensor([70000]), dtype=HALF)
    assert result.outputs.tolist() == [float("inf")]
    assert result.unrounded[0] is not None
    assert result.unrounded[0].tolist() == [70000.0]


def test_copying_into_half_rounds_and_broadcasts() -> None:
    target = torch.zeros(2, 2, dtype=HALF)
    result = run(aten.copy_.default, target, torch.tensor([70000.0, 1.0]))
    assert result.outputs is target
    assert result.unrounded[0] is not None
    assert result.unrounded[0].tolist() == [[70000.0, 1.0], [70000.0, 1.0]]


@pytest.mark.parametrize(
    ("source", "dtype"), [(half(1.0), SINGLE), (half(1.0), HALF), (torch.ones(1), DOUBLE)]
)
def test_casts_that_do_not_round_say_so(source: Tensor, dtype: torch.dtype) -> None:
    result = run(aten._to_copy.default, source, dtype=dtype)
    assert result.outputs.dtype is dtype
    assert result.unrounded == (None,)


def test_in_place_ops_change_and_return_the_users_tensor() -> None:
    x = half(1.0, 60000.0)
    view = x[1:]
    result = run(aten.add_.Tensor, view, half(60000.0))
    assert result.outputs is view
    assert x.tolist() == [1.0, float("inf")]
    assert result.unrounded[0] is not None
    assert result.unrounded[0].tolist() == [120000.0]


def test_float32_into_half_in_place_is_rounded_once() -> None:
    # The other operand alone would round to 2^-11, and 1 + 2^-11 is a tie that goes to 1.
    x = half(1.0)
    run(aten.add_.Tensor, x, torch.tensor([2.0**-11 + 2.0**-23]))
    assert x.tolist() == [1.0 + 2.0**-10]


def test_half_into_float32_in_place_is_not_rounded() -> None:
    x = torch.tensor([1.0])
    result = run(aten.add_.Tensor, x, half(2.0**-20))
    assert result.outputs is x
    assert x.tolist() == [1.0 + 2.0**-20]


def test_out_arguments_are_filled_and_returned() -> None:
    out = torch.empty(0, dtype=HALF)
    result = run(aten.mm.out, half([300.0]), half([300.0]), out=out)
    assert result.outputs is out
    assert out.tolist() == [[float("inf")]]
    assert result.unrounded[0] is not None
    assert result.unrounded[0].tolist() == [[90000.0]]


def test_lists_are_changed_in_place() -> None:
    xs = [half(1.0), half(60000.0)]
    result = run(aten._foreach_mul_.Scalar, xs, 2.0)
    assert result.outputs is None
    assert [x.tolist() for x in xs] == [[2.0], [float("inf")]]
    assert [t.tolist() for t in result.unrounded if t is not None] == [[2.0], [120000.0]]


def test_index_put_adds_up_in_float32() -> None:
    indices = torch.zeros(4, dtype=torch.int64)
    result = run(aten.index_put.default, half(2048.0), [indices], torch.ones(4, dtype=HALF), True)
    assert result.outputs.tolist() == [2052.0]


def test_adams_eps_is_lost_in_half_precision() -> None:
    parameter = nn.Parameter(half(1.0))
    parameter.grad = half(1e-5)  # its square, 1e-10, is flushed
    with LikeCuda():
        torch.optim.Adam([parameter], lr=0.1, foreach=False).step()
    assert parameter.tolist() == [float("-inf")]


@pytest.mark.parametrize("foreach", [False, True])
def test_sgd_rounds_the_updated_weight_once(foreach: bool) -> None:
    parameter = nn.Parameter(half(1.0, 1.0))
    parameter.grad = half(1.0, 4.0)
    with LikeCuda():
        torch.optim.SGD([parameter], lr=2.0**-13, foreach=foreach).step()
    # 1 - 2^-13 is a quarter of the way to the next value below, 1 - 2^-11 is that value.
    assert parameter.tolist() == [1.0, 1.0 - 2.0**-11]


def test_a_backward_pass_survives_in_place_ops() -> None:
    x = half(2.0).requires_grad_()
    with LikeCuda():
        y = (x * 3).sigmoid_()
        y.backward(torch.ones_like(y))
    assert y.tolist() == [1 - 5 * 2.0**-11]  # sigmoid(6) is 0.99753, 2042.94 steps of 2^-11
    assert x.grad is not None
    # y * (1 - y) is 10215 * 2^-22, in half 1277 * 2^-19; three times that is 3831 * 2^-19, in half 3832.
    assert x.grad.tolist() == [3832 * 2.0**-19]


def test_a_dtype_argument_decides_the_result() -> None:
    x = torch.full((2,), 60000.0, dtype=HALF)
    wide = run(aten.sum.default, x, dtype=SINGLE)
    assert wide.outputs.dtype is SINGLE
    assert wide.outputs.item() == 120000.0
    assert wide.unrounded == (None,)
    low = run(aten.sum.default, x, dtype=HALF)
    assert low.outputs.dtype is HALF
    assert low.outputs.item() == float("inf")
    other = run(aten.sum.default, x, dtype=BRAIN)
    assert other.outputs.dtype is BRAIN
    assert other.outputs.item() == 119808.0  # the bfloat16 nearest to 120000 is 234 * 512


def test_softmaxs_backward_gives_the_dtype_of_the_input() -> None:
    result = run(aten._softmax_backward_data.default, half(1.0, 0.0), half(0.5, 0.5), 0, HALF)
    assert result.outputs.dtype is HALF
    assert result.outputs.tolist() == [0.25, -0.25]


def test_statistics_of_norms_stay_in_float32() -> None:
    x = torch.randn(4, 6, dtype=HALF)
    layer = run(aten.native_layer_norm.default, x, [6], None, None, 1e-5)
    assert [t.dtype for t in layer.outputs] == [HALF, SINGLE, SINGLE]
    batch = run(aten.native_batch_norm.default, x, None, None, None, None, True, 0.1, 1e-5)
    assert [t.dtype for t in batch.outputs] == [HALF, SINGLE, SINGLE]


def test_batch_norm_updates_half_running_statistics() -> None:
    mean, var = torch.zeros(1, dtype=HALF), torch.ones(1, dtype=HALF)
    x = half([0.0], [4.0])
    run(aten.native_batch_norm.default, x, None, None, mean, var, True, 0.5, 1e-5)
    assert mean.tolist() == [1.0]  # half of the old 0 and of the batch's 2
    assert var.tolist() == [4.5]  # half of the old 1 and of the batch's unbiased 8


def test_batch_norm_takes_float32_weights_with_half_input() -> None:
    norm = nn.BatchNorm1d(3)
    x = torch.randn(4, 3).half().requires_grad_()
    with LikeCuda():
        y = norm(x)
        y.sum().backward()
    assert y.dtype is HALF
    assert x.grad is not None
    assert norm.weight.grad is not None
    assert (x.grad.dtype, norm.weight.grad.dtype) == (HALF, SINGLE)
    assert norm.running_mean is not None
    assert norm.running_mean.dtype is SINGLE


def test_attention_rounds_its_output_and_keeps_its_logsumexp() -> None:
    q = torch.randn(1, 1, 4, 8, dtype=HALF)
    result = run(aten._scaled_dot_product_flash_attention_for_cpu.default, q, q, q)
    assert [t.dtype for t in result.outputs] == [HALF, SINGLE]
    exact = F.scaled_dot_product_attention(q.double(), q.double(), q.double())
    assert (result.outputs[0].double() - exact).abs().max().item() < 2.0**-10 * 4


def test_comparisons_and_indices_are_not_floating() -> None:
    x = half(1.0, 3.0, 2.0)
    assert run(aten.gt.Scalar, x, 1.5).outputs.tolist() == [False, True, True]
    assert run(aten.argmax.default, x).outputs.item() == 1
    values, indices = run(aten.topk.default, x, 2).outputs
    assert (values.tolist(), indices.tolist()) == ([3.0, 2.0], [1, 2])


def test_a_fill_value_that_half_cannot_hold_raises_as_it_does_on_cuda() -> None:
    with pytest.raises(RuntimeError, match=r"cannot be converted to type .*::Half without overflow"):
        run(aten.masked_fill.Scalar, half(1.0), torch.tensor([True]), -1e9)


def test_a_bound_that_half_cannot_hold_does_not_raise() -> None:
    with pytest.raises(RuntimeError, match="without overflow"):
        half(4.0).clamp(max=1e9)
    assert run(aten.clamp.default, half(4.0), None, 1e9).outputs.tolist() == [4.0]


def test_a_mixture_of_dtypes_raises_as_it_does_on_cuda() -> None:
    with pytest.raises(RuntimeError, match="same dtype"):
        run(aten.mm.default, half([1.0]), torch.ones(1, 1))


def test_a_failing_op_fails_with_the_error_of_the_users_dtype() -> None:
    x, y = torch.ones(2, 3, dtype=HALF), torch.ones(2, 3, dtype=HALF)
    with pytest.raises(RuntimeError) as emulated:
        run(aten.mm.default, x, y)
    with pytest.raises(RuntimeError) as native:
        torch.mm(x, y)
    assert str(emulated.value) == str(native.value)
    assert emulated.value.__context__ is None

"""Where a non-finite value is born, what it should have been, and where it goes."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ampdoctor.load.workload import Workload
from ampdoctor.probe.plan import Plan
from ampdoctor.probe.scan import probe
from probe_helpers import Calls, birth_ops, text, the_birth, traced
from second_looks import halved, origins

INF, NAN = math.inf, math.nan


# ---------------------------------------------------------------- born or arrived


def test_a_product_out_of_range_is_born_where_it_is_made() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        y = x * x
        return y + 1.0

    birth = the_birth(halved(forward, torch.tensor([2.0, 300.0, 3.0])))
    assert birth.site is not None
    assert birth.site.key == "forward||aten::mul|0|0"
    assert text(birth) == "y = x * x"
    assert (birth.value, birth.dtype, birth.shape, birth.index, birth.count) == (
        "inf", "float16", (3,), (1,), 1,
    )  # fmt: skip
    assert (birth.rerun, birth.exact_value) == ("finite", 90000.0)
    assert (birth.reference, birth.reference_value) == ("finite", 90000.0)
    assert [(s.op, s.value) for s in birth.path] == [
        ("aten::add", "inf"),
        ("aten::_to_copy", "inf"),
        ("aten::sum", "inf"),
    ]
    assert birth.reaches_loss and birth.absorbed_at is None
    assert [(o.dtype, o.shape, o.absmax, o.infs) for o in birth.operands] == [("float16", (3,), 300.0, 0)] * 2


@pytest.mark.parametrize(
    ("factor", "born"),
    [
        (2047.0, []),  # 32 * 2047 = 65504, the largest value
        (2048.0, [("inf", "mul")]),  # 65536
    ],
)
def test_the_largest_value_is_no_overflow(factor: float, born: list[tuple[str, str]]) -> None:
    assert birth_ops(halved(lambda self, x: x * factor, torch.tensor([32.0]))) == born


def test_nan_out_of_infinities_that_were_born_is_the_same_fault() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        y = x * x
        return y - y

    trace = halved(forward, torch.tensor([300.0]))
    assert birth_ops(trace) == [("inf", "mul")]
    assert [(s.op, s.value) for s in trace.births[0].path][:1] == [("aten::sub", "nan")]
    assert trace.births[0].reaches_loss


@pytest.mark.parametrize(
    ("op", "value", "rerun"),
    [
        (lambda x: x / x, "nan", "nan"),  # 0 / 0
        (lambda x: 1.0 / x, "inf", "inf"),
        (lambda x: (x - 1.0).sqrt(), "nan", "nan"),  # of -1
        (lambda x: x.log(), "inf", "inf"),
    ],
    ids=["0/0", "1/0", "sqrt(-1)", "log(0)"],
)
def test_what_is_undefined_in_float32_as_well(op: Callable[[Tensor], Tensor], value: str, rerun: str) -> None:
    birth = the_birth(halved(lambda self, x: op(x), torch.tensor([4.0, 0.0])))
    assert (birth.value, birth.index, birth.count) == (value, (1,), 1)
    assert (birth.rerun, birth.reference) == (rerun, "same")


def test_zero_by_zero_next_to_one_by_zero_is_one_fault() -> None:
    birth = the_birth(halved(lambda self, x: x / (x * 0.0), torch.tensor([1.0, 0.0])))
    assert (birth.value, birth.count) == ("nan", 2)


def test_only_the_elements_born_here_count() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        y = x.masked_fill(x == 7.0, -INF)
        return y * 300.0

    birth = the_birth(halved(forward, torch.tensor([7.0, 300.0, 1.0])))
    assert (birth.value, birth.index, birth.count, birth.exact_value) == ("inf", (1,), 1, 90000.0)


def test_two_independent_faults_are_both_listed_in_order() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        a = x[0] * 1000.0
        b = x[1] / 0.0
        return torch.stack([a, b])

    trace = halved(forward, torch.tensor([70.0, 1.0]))
    assert birth_ops(trace) == [("inf", "mul"), ("inf", "div")]
    assert [b.id for b in trace.births] == [0, 1]
    assert trace.births[0].order < trace.births[1].order
    assert all(b.reaches_loss for b in trace.births)


def test_births_of_several_batches_are_numbered_through() -> None:
    batches = [torch.tensor([300.0]), torch.tensor([1.0]), torch.tensor([400.0])]
    trace = traced(Calls(lambda self, x: x * x), *batches, mode="half")
    assert [(b.id, b.batch, b.exact_value) for b in trace.births] == [(0, 0, 90000.0), (1, 2, 160000.0)]


# ---------------------------------------------------------------- infinities the user wrote


def _with_a_slice_assigned(x: Tensor) -> Tensor:
    out = x.clone()
    out[0, 1] = -INF
    return out


DECLARED: dict[str, Callable[[Tensor], Tensor]] = {
    "masked_fill": lambda x: x.masked_fill(x > 1.0, -INF),
    "in-place masked_fill": lambda x: x.clone().masked_fill_(x > 1.0, -INF),
    "full": lambda x: x + torch.full((2, 2), -INF).triu(1).to(x.dtype),
    "where": lambda x: torch.where(x > 1.0, -INF, x),
    "tensor": lambda x: torch.where(x > 1.0, torch.tensor(-INF, dtype=x.dtype), x),
    "scalar": lambda x: torch.cat([x[:, :1], x[:, 1:] + -INF], 1),
    "item assignment": lambda x: x.index_put((torch.tensor([0]), torch.tensor([1])), x.new_tensor(-INF)),
    "slice assignment": _with_a_slice_assigned,
}


def _absorbed_overflow(x: Tensor) -> Tensor:
    """1 where x > 0: what overflows there in FP16 makes a second look needed, and is seen nowhere else."""
    return (x * 1e5).clamp(max=1.0)


@pytest.mark.parametrize("how", DECLARED)
def test_an_infinity_the_user_wrote_is_no_fault(how: str) -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        return DECLARED[how](x).exp() + _absorbed_overflow(x)

    trace = halved(forward, torch.tensor([[1.0, 2.0], [0.0, 1.0]]))
    assert set(origins(trace)) == {"declared", "op"}
    assert birth_ops(trace) == [("inf", "mul")]
    assert not any(b.reaches_loss for b in trace.births)


@pytest.mark.parametrize("how", DECLARED)
def test_infinities_that_fp32_has_at_the_same_places_need_no_second_look(how: str) -> None:
    stages: list[str] = []
    model = Calls(lambda self, x: DECLARED[how](x).exp())
    batch = torch.tensor([[1.0, 2.0], [0.0, 1.0]])
    workload = Workload("masks", model, (batch,), lambda m, x: m(x).float().sum())
    trace = probe(workload, Plan(device="cpu", mode="half"), lambda stage, done, of: stages.append(stage))
    looked = any(stage.startswith("second look") for stage in stages)
    # the cast of a mask that was made in FP32 has no twin there to be compared with
    assert looked == (how == "full")
    assert trace.deterministic is (None if looked else True)


def test_one_infinity_more_than_fp32_has_is_looked_at() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        return torch.where(x > 1.0, -INF, x * 1e5).clamp(max=1.0).exp()

    assert birth_ops(halved(forward, torch.tensor([[1.0, 2.0], [0.0, 1.0]]))) == [("inf", "mul")]


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tensor([[0.0, -INF], [0.0, 0.0]]))
        self.plain = torch.tensor([[0.0, -INF], [0.0, 0.0]])

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.mask + self.plain).exp() + _absorbed_overflow(x)


def test_an_infinity_in_a_buffer_or_an_attribute_is_no_fault() -> None:
    trace = traced(Masked(), torch.ones(2, 2), mode="half")
    assert [(b.origin, b.name) for b in trace.births] == [("buffer", "mask"), ("declared", ""), ("op", "")]
    assert not any(b.reaches_loss for b in trace.births)


def test_an_infinity_times_zero_is_born_there_and_has_the_infinity_for_a_parent() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        hidden = x.masked_fill(x > 1.0, -INF)
        return hidden * 0.0

    trace = halved(forward, torch.tensor([1.0, 2.0]))
    birth = the_birth(trace)
    assert (birth.value, birth.index, birth.count, text(birth)) == ("nan", (1,), 1, "return hidden * 0.0")
    assert [trace.births[p].origin for p in birth.parents] == ["declared"]


def test_softmax_of_a_row_that_is_all_masked() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        scores = x.masked_fill(x > 1.0, -INF)
        return scores.softmax(-1)

    trace = halved(forward, torch.tensor([[1.0, 0.0], [2.0, 3.0], [0.0, 2.0]]))
    birth = the_birth(trace)
    assert birth.site is not None
    assert (birth.value, birth.site.op, birth.index, birth.count) == ("nan", "aten::_softmax", (1, 0), 2)
    assert (birth.rerun, birth.reference) == ("nan", "same")
    assert [trace.births[p].origin for p in birth.parents] == ["declared"]


def test_an_overflow_next_to_a_mask_is_a_fault() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        return (x * x).masked_fill(x > 500.0, -INF)

    assert birth_ops(halved(forward, torch.tensor([300.0, 1000.0]))) == [("inf", "mul")]


# ---------------------------------------------------------------- elements and samples


def test_the_samples_that_hold_it() -> None:
    x = torch.tensor([[1.0, 2.0], [300.0, 1.0], [1.0, 400.0]])
    birth = the_birth(halved(lambda self, x: x * x, x))
    assert (birth.count, birth.samples) == (2, (1, 2))


def test_the_element_furthest_out_of_range_stands_for_the_birth() -> None:
    x = torch.tensor([[300.0, 1.0], [1.0, -400.0], [-310.0, 1.0]])
    birth = the_birth(halved(lambda self, x: x * x.abs(), x))
    assert (birth.index, birth.count) == ((1, 1), 3)
    assert (birth.exact_value, birth.reference_value) == (-160000.0, -160000.0)


def test_where_the_first_element_is_infinite_in_float64_too_it_stands_for_the_birth() -> None:
    # 1e-9 is 0 in half: the first quotient is a flush's, and has no size that 307,200 could be compared with
    birth = the_birth(halved(lambda self, x: x[0] / x[1], torch.tensor([[1.0, 300.0], [1e-9, 2.0**-10]])))
    assert (birth.index, birth.count, birth.rerun, birth.reference) == ((0,), 2, "inf", "finite")


def test_no_samples_where_the_first_dimension_is_not_the_batch() -> None:
    x = torch.tensor([[1.0, 2.0], [300.0, 1.0], [1.0, 400.0]])
    assert the_birth(halved(lambda self, x: x.t() * x.t(), x)).samples is None


def test_the_element_of_a_linear_layer_as_the_user_sees_it() -> None:
    linear = nn.Linear(2, 3)
    nn.init.ones_(linear.weight), nn.init.zeros_(linear.bias)
    x = torch.ones(2, 4, 2)
    x[1, 2] = 40000.0  # 40000 + 40000 leaves the range; nn.Linear sees rows of an 8 x 2 matrix
    birth = the_birth(halved(lambda self, x: self.linear(x), x, linear=linear))
    assert (birth.shape, birth.index, birth.count) == ((2, 4, 3), (1, 2, 0), 3)
    assert (birth.samples, birth.exact_value) == ((1,), 80000.0)


def test_a_birth_shows_an_element_that_the_reference_has_finite() -> None:
    # 1000 / 0 is infinite in float32 too; 1000 / 0.01 only in float16.
    birth = the_birth(halved(lambda self, x: x[0] / x[1], torch.tensor([[1000.0, 1000.0], [0.0, 0.01]])))
    assert (birth.index, birth.count, birth.reference) == ((1,), 2, "finite")
    assert birth.reference_value == pytest.approx(100000.0)


def test_the_largest_number_in_a_call() -> None:
    birth = the_birth(halved(lambda self, x: torch.add(x, x, alpha=-40000.0), torch.tensor([2.0])))
    assert birth.constant == -40000.0


def test_a_complex_value() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        return (torch.complex(x.float(), x.float() * 0.0) * 1e38).abs()

    birth = the_birth(halved(forward, torch.tensor([1.0, 100.0])))
    assert (birth.value, birth.dtype, birth.index, birth.reference) == ("inf", "complex64", (1,), "same")
    assert (birth.rerun, birth.exact_value) == ("finite", pytest.approx(1e40))


def test_a_conjugate_written_in_place() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        z = torch.complex(x.float(), x.float()).conj()
        z.mul_(1e38)
        return z.abs()

    birth = the_birth(halved(forward, torch.tensor([1.0, 100.0])))
    assert (birth.index, birth.count) == ((1,), 1)


def test_an_8_bit_format() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        low = (x * 4.0).to(torch.float8_e5m2)
        return low.float()

    birth = the_birth(halved(forward, torch.tensor([1.0, 16000.0])))  # 57344 is the largest value
    assert (birth.value, birth.dtype, birth.index) == ("inf", "float8_e5m2", (1,))
    assert birth.exact_value == 64000.0


# ---------------------------------------------------------------- where it goes


def test_a_value_that_is_absorbed_reaches_nothing() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        y = x * x
        return 1.0 / y

    (birth,) = halved(forward, torch.tensor([300.0])).births
    assert (birth.reaches_loss, birth.reaches_gradients) == (False, ())
    assert birth.absorbed_at is not None
    assert (birth.absorbed_at.op, birth.absorbed_at.value) == ("aten::reciprocal", "finite")


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Parameter(torch.tensor([1.0, 300.0]))
        self.apart = nn.Parameter(torch.tensor([1.0, 1.0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.used * self.used * x + self.apart


def test_the_gradients_that_a_forward_fault_makes_bad() -> None:
    birth = the_birth(traced(Weighted(), torch.tensor([1.0, 300.0]), mode="half"))
    # d/d used = 2 * used * x = 180000 for the second element; d/d apart = 1.
    assert birth.reaches_loss
    assert birth.reaches_gradients == ("used",)


def test_forward_only_the_outputs_stand_for_the_loss() -> None:
    trace = traced(
        Calls(lambda self, x: {"a": x, "b": [x * x]}),
        torch.tensor([300.0]),
        mode="half",
        forward_only=True,
        loss=lambda m, x: m(x),
    )
    assert the_birth(trace).reaches_loss


# ---------------------------------------------------------------- bad before anything runs


@pytest.mark.parametrize(("value", "name"), [(NAN, "nan"), (INF, "inf")])
def test_a_bad_weight(value: float, name: str) -> None:
    linear = nn.Linear(2, 2)
    with torch.no_grad():
        linear.weight[1, 0] = value
    trace = traced(Calls(lambda self, x: self.linear(x), linear=linear), torch.ones(1, 2))
    assert [(b.origin, b.name, b.value, b.index, b.count) for b in trace.births] == [
        ("parameter", "linear.weight", name, (1, 0), 1)
    ]
    assert [(t.kind, t.name, t.nan + t.inf, t.index) for t in trace.bad_tensors] == [
        ("parameter", "linear.weight", 1, (1, 0))
    ]
    assert trace.births[0].reaches_loss


def test_a_bad_batch() -> None:
    x = torch.tensor([[1.0, 2.0], [NAN, 1.0], [1.0, INF]])
    trace = traced(Calls(lambda self, b: b["x"] * 2.0), {"y": torch.ones(3), "x": x})
    assert [(b.origin, b.name, b.value, b.index) for b in trace.births] == [("batch", "['x']", "nan", (1, 0))]
    (bad,) = trace.bad_tensors
    assert (bad.kind, bad.name, bad.batch, bad.nan, bad.inf, bad.index, bad.samples) == (
        "batch", "['x']", 0, 1, 1, (1, 0), (1, 2),
    )  # fmt: skip


def test_a_batch_out_of_range_of_half_precision_is_born_at_the_cast() -> None:
    birth = the_birth(halved(lambda self, x: x * 0.5, torch.tensor([1.0, 1e6])))
    assert birth.site is not None
    assert (birth.site.op, birth.exact_value) == ("aten::_to_copy", 1e6)

"""The counters of a pass against counting element by element."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ampdoctor.facts.histogram import ExponentHistogram
from ampdoctor.facts.stats import TensorStats
from ampdoctor.probe.watch import exponents
from ampdoctor.probe.watch.tally import Tally

INF, NAN = math.inf, math.nan


@pytest.fixture(scope="module", params=["on the host", "as on a device"], autouse=True)
def place(request: pytest.FixtureRequest) -> Iterator[None]:
    """Both ways of counting with torch's own ops: in pieces that a CPU's cache holds, and in few kernels."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "as on a device":
            patch.setattr(exponents, "on_host", lambda x: False)
        yield


def counted(tensor: Tensor, unrounded: Tensor | None = None, ties: bool = False) -> TensorStats:
    tally = Tally()
    tally.add(tensor, unrounded, ties)
    (stats,) = tally.read()
    return stats


def by_hand(values: list[float]) -> ExponentHistogram:
    """The histogram of these numbers, one at a time."""
    finite = [abs(v) for v in values if math.isfinite(v) and v != 0]
    return ExponentHistogram(
        dict(Counter(math.frexp(v)[1] - 1 for v in finite)),
        sum(v == 0 for v in values),
        sum(math.isinf(v) for v in values),
        sum(math.isnan(v) for v in values),
    )


def without_powers(histogram: ExponentHistogram) -> ExponentHistogram:
    return ExponentHistogram(histogram.counts, histogram.zeros, histogram.infs, histogram.nans)


def check(tensor: Tensor) -> None:
    """Every figure of ``tensor`` is what going through its elements gives."""
    stats = counted(tensor)
    values = [float(v) for v in tensor.double().flatten()]
    expected = by_hand(values)
    assert without_powers(stats.histogram) == expected
    assert (stats.zeros, stats.inf, stats.nan) == (expected.zeros, expected.infs, expected.nans)
    assert (stats.flushed, stats.overflowed) == (None, None)
    assert stats.shape == tuple(tensor.shape)
    if expected.nans:
        assert stats.min is not None and math.isnan(stats.min)
        assert stats.max is not None and math.isnan(stats.max)
    else:
        assert (stats.min, stats.max) == (min(values), max(values))
    sound = expected.nans == expected.infs == 0
    assert stats.absmax == (max(map(abs, values)) if sound else None)


bits16 = st.lists(st.integers(-(2**15), 2**15 - 1), min_size=1, max_size=30)
singles = st.lists(
    # FP32's own subnormals are below every half format's range; the counters round them to 2^-133 or 0.
    st.floats(width=32, allow_subnormal=False) | st.sampled_from([0.0, -0.0, INF, -INF, NAN]),
    min_size=1,
    max_size=30,
)


@pytest.mark.parametrize("copies", [1, 20_000])
def test_every_kind_of_nan_before_rounding_is_one(copies: int) -> None:
    bits = torch.tensor([0x7FFFFFFF, 0x7F800001, 0x7FC00000, -1, -0x800000 + 1], dtype=torch.int32)
    before = torch.cat([bits.view(torch.float32), torch.tensor([1.0, INF])]).repeat(copies)
    stats = counted(before.half(), before, True)
    assert (stats.nan, stats.inf, stats.histogram.counts) == (5 * copies, copies, {0: copies})


@settings(deadline=None, max_examples=50)
@given(bits16)
def test_every_pattern_of_float16(bits: list[int]) -> None:
    check(torch.tensor(bits, dtype=torch.int16).view(torch.float16))


@settings(deadline=None, max_examples=50)
@given(bits16)
def test_every_pattern_of_bfloat16(bits: list[int]) -> None:
    check(torch.tensor(bits, dtype=torch.int16).view(torch.bfloat16))


@settings(deadline=None, max_examples=50)
@given(singles)
def test_float32(values: list[float]) -> None:
    check(torch.tensor(values, dtype=torch.float32))


@settings(deadline=None, max_examples=50)
@given(singles)
def test_float64_with_the_values_of_float32(values: list[float]) -> None:
    check(torch.tensor(values, dtype=torch.float64))


@settings(deadline=None, max_examples=50)
@given(singles)
def test_complex_numbers_are_counted_by_their_parts(values: list[float]) -> None:
    parts = torch.tensor([values, values[::-1]], dtype=torch.float32)
    stats = counted(torch.complex(parts[0], parts[1]))
    assert stats.histogram == counted(parts).histogram
    assert stats.shape == (len(values), 2)


def test_the_limits_of_float16() -> None:
    values = [0.0, -0.0, 2.0**-24, -(2.0**-14), 1.0, -65504.0, INF, NAN]
    stats = counted(torch.tensor(values, dtype=torch.float16))
    assert stats.histogram.counts == {-24: 1, -14: 1, 0: 1, 15: 1}
    assert (stats.zeros, stats.inf, stats.nan) == (2, 1, 1)


def test_no_elements_have_no_range() -> None:
    stats = counted(torch.zeros(3, 0))
    assert (stats.min, stats.max, stats.absmax, stats.histogram.total) == (None, None, None, 0)
    assert (stats.shape, stats.numel) == ((3, 0), 0)


def test_one_element_without_dimensions() -> None:
    stats = counted(torch.tensor(-3.0))
    assert (stats.min, stats.max, stats.absmax, stats.shape) == (-3.0, -3.0, 3.0, ())
    assert stats.histogram.counts == {1: 1}


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.t(),
        lambda t: t[:, 1::2],
        lambda t: t[1],
        lambda t: t[:1].expand(5, 6),
    ],
    ids=["transposed", "strided", "offset", "expanded"],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_only_the_elements_of_a_view_count(view: object, dtype: torch.dtype) -> None:
    assert callable(view)
    check(view(torch.arange(-12.0, 12.0).to(dtype).reshape(4, 6)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("copies", [3, 3000, 200_000], ids=["pooled", "in one piece", "in chunks"])
def test_a_size_of_every_kind_counts_alike(dtype: torch.dtype, copies: int) -> None:
    once = [0.0, 1.0, -1.5, 2.0**-14, 40000.0, INF, NAN]
    stats = counted(torch.tensor(once, dtype=dtype).repeat(copies))
    assert stats.numel == 7 * copies  # 21, 21 000 and 1 400 000: the limits are 2^14 and 2^20
    assert stats.histogram.counts == {0: 2 * copies, -14: copies, 15: copies}
    assert (stats.zeros, stats.inf, stats.nan) == (copies, copies, copies)


def test_many_tensors_keep_their_order() -> None:
    tally = Tally()
    rows = [
        tally.add(t, None)
        for t in (
            torch.ones(2, dtype=torch.float16),
            torch.full((20_000,), 8.0),
            torch.empty(0),
            torch.full((3,), 2.0),
            torch.full((1,), 4.0, dtype=torch.bfloat16),
            torch.full((5,), 0.5, dtype=torch.float16),
        )
    ]
    assert rows == [0, 1, 2, 3, 4, 5]
    assert [(s.numel, s.absmax, dict(s.histogram.counts)) for s in tally.read()] == [
        (2, 1.0, {0: 2}),
        (20_000, 8.0, {3: 20_000}),
        (0, None, {}),
        (3, 2.0, {1: 3}),
        (1, 4.0, {2: 1}),
        (5, 0.5, {-1: 5}),
    ]


def test_a_tensor_written_over_after_it_was_counted() -> None:
    tally = Tally()
    tensor = torch.ones(4, dtype=torch.float16)
    tally.add(tensor, None)
    tensor.zero_()
    (stats,) = tally.read()
    assert (stats.absmax, stats.zeros, dict(stats.histogram.counts)) == (1.0, 0, {0: 4})


# ---------------------------------------------------------------- with the value before rounding

BEFORE = [0.0, 2.0**-26, -(2.0**-25), 1.5 * 2.0**-25, 2.0**-14, 3.0, 65519.0]
"""Into float16: 2^-26 and the tie 2^-25 become 0, 1.5 * 2^-25 rounds up to 2^-24, 65519 down to 65504."""


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("copies", [1, 3000])
def test_flushed_is_what_became_zero(ties: bool, copies: int) -> None:
    before = torch.tensor(BEFORE).repeat(copies)
    stats = counted(before.half(), before, ties)
    assert (stats.flushed, stats.zeros, stats.overflowed) == (2 * copies, 3 * copies, 0)
    assert (stats.min, stats.max, stats.absmax) == (0.0, 65504.0, 65504.0)
    assert stats.absmax_before_rounding == 65519.0
    # With ties the histogram is of the values before, else of the elements.
    counts = {-26: 1, -25: 2, -14: 1, 1: 1, 15: 1} if ties else {-24: 1, -14: 1, 1: 1, 15: 1}
    powers = (-26, -25, -14) if ties else (-24, -14)
    assert stats.histogram.counts == {e: copies * n for e, n in counts.items()}
    assert stats.histogram.powers == dict.fromkeys(powers, copies)


@pytest.mark.parametrize(
    ("values", "overflowed"),
    [
        ([65504.0, 65519.0], 0),  # the largest value, and the last that rounds down to it
        ([1.0, 65520.0], 1),
        ([1.0, -65520.0], 1),
        ([65536.0, -(2.0**100), 2.0], 2),
    ],
)
def test_overflowed_is_what_became_infinite(values: list[float], overflowed: int) -> None:
    before = torch.tensor(values)
    stats = counted(before.half(), before)
    assert (stats.overflowed, stats.inf) == (overflowed, overflowed)
    assert stats.absmax_before_rounding == max(map(abs, values))


@pytest.mark.parametrize(("ties", "overflowed"), [(True, 1), (False, None)])
def test_an_infinity_before_rounding_did_not_overflow(ties: bool, overflowed: int | None) -> None:
    before = torch.tensor([INF, 70000.0, 1.0])
    stats = counted(before.half(), before, ties)
    # The elements alone do not tell one from the other.
    assert (stats.overflowed, stats.inf) == (overflowed, 2)
    assert stats.absmax_before_rounding is None


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(2.0**-40, 65000.0, width=32), min_size=1, max_size=30))
def test_ties_give_the_zeros_of_the_cast(values: list[float]) -> None:
    before = torch.tensor(values)
    after = before.half()
    stats = counted(after, before, ties=True)
    assert stats.zeros == stats.flushed == int((after == 0).sum())


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(2.0**-40, 60000.0, width=32), min_size=1, max_size=30))
def test_counting_by_zeros_or_by_ties_is_the_same(values: list[float]) -> None:
    before = torch.tensor(values)
    assert counted(before.half(), before).flushed == counted(before.half(), before, ties=True).flushed


def test_a_value_of_another_shape_is_not_the_one_before_rounding() -> None:
    stats = counted(torch.ones(2, 2, dtype=torch.float16), torch.ones(4))
    assert (stats.flushed, stats.overflowed) == (None, None)


# ---------------------------------------------------------------- a wider copy


def test_a_wider_copy_has_the_figures_of_its_source() -> None:
    tally = Tally()
    half = torch.tensor([0.0, 3.0, -7.0, INF], dtype=torch.float16)
    row = tally.add(half, None)
    tally.add_upcast(half.float().reshape(2, 2), row)
    source, copy = tally.read()
    assert (copy.dtype, copy.shape) == ("float32", (2, 2))
    assert (copy.min, copy.max, copy.inf, copy.zeros) == (-7.0, INF, 1, 1)
    assert copy.histogram == source.histogram


def test_a_wider_copy_of_a_rounded_tensor_counts_what_was_kept() -> None:
    tally = Tally()
    before = torch.tensor(BEFORE)
    half = before.half()
    row = tally.add(half, before, ties=True)
    tally.add_upcast(half.float(), row)
    _, copy = tally.read()
    assert (copy.zeros, copy.flushed, copy.overflowed, copy.absmax_before_rounding) == (3, None, None, None)
    # 1.5 * 2^-25 is now 2^-24, which its histogram, by whole exponents, leaves at -25.
    assert (copy.histogram.zeros, dict(copy.histogram.counts)) == (3, {-25: 1, -14: 1, 1: 1, 15: 1})


def test_a_wider_copy_of_nothing() -> None:
    tally = Tally()
    tally.add_upcast(torch.zeros(0), tally.add(torch.zeros(0, dtype=torch.float16), None))
    assert [(s.dtype, s.min, s.numel) for s in tally.read()] == [("float16", None, 0), ("float32", None, 0)]


def test_an_empty_tally_reads_as_nothing() -> None:
    assert Tally().read() == []


@pytest.mark.parametrize("copies", [1, 20_000])
def test_float64_beyond_float32_is_neither_infinite_nor_zero(copies: int) -> None:
    stats = counted(torch.tensor([1e60, -1e-60, 1.0, 0.0], dtype=torch.float64).repeat(copies), None)
    assert (stats.inf, stats.zeros, stats.absmax) == (0, copies, 1e60)
    assert stats.histogram.counts == {127: copies, -126: copies, 0: copies}

"""Shifting a histogram by k bits equals multiplying by 2^k and casting: checked against torch's own casts."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ampdoctor.facts.floats import (
    BFLOAT16,
    FLOAT8_E4M3FN,
    FLOAT8_E5M2,
    FLOAT16,
    FloatFormat,
)
from ampdoctor.facts.histogram import ExponentHistogram, exponent_of
from ampdoctor.probe.watch.tally import Tally

FORMATS = [FLOAT16, BFLOAT16, FLOAT8_E4M3FN, FLOAT8_E5M2]
TORCH = {fmt.name: getattr(torch, fmt.name) for fmt in FORMATS}
FLOAT32_MAX = float(torch.finfo(torch.float32).max)
FLOAT32_TINY = 2.0**-149
"""The smallest FP32 number above zero."""


def next_float32(x: float, towards: float) -> float:
    return float(torch.nextafter(torch.tensor(x), torch.tensor(towards)))


def edges(fmt: FloatFormat) -> list[float]:
    """Where a format changes its mind, and the FP32 numbers next to those places."""
    places = [fmt.max, fmt.overflow_at, fmt.min_normal, fmt.min_subnormal, fmt.flush_at]
    neighbours = [next_float32(x, way) for x in places for way in (0.0, math.inf)]
    return [x for x in (*places, *neighbours) if x <= FLOAT32_MAX]


EDGES = [0.0, -0.0, 65504.0, 65520.0, 2.0**-24, 2.0**-25, next_float32(2.0**-25, 1.0), FLOAT32_TINY]
EDGES += [sign * x for fmt in FORMATS for x in edges(fmt) for sign in (1.0, -1.0)]

numbers = st.floats(width=32, allow_nan=False, allow_infinity=False) | st.sampled_from(EDGES)
small_shifts = st.integers(-40, 40)


def histogram_of(values: list[float]) -> ExponentHistogram:
    """Counted one by one, as the definition says."""
    counts: dict[int, int] = {}
    powers: dict[int, int] = {}
    for x in (abs(v) for v in values if v != 0):
        exponent = exponent_of(x)
        counts[exponent] = counts.get(exponent, 0) + 1
        if x == 2.0**exponent:
            powers[exponent] = powers.get(exponent, 0) + 1
    return ExponentHistogram(counts, zeros=sum(v == 0 for v in values), powers=powers)


def scaled_exactly(values: list[float], bits: int) -> list[tuple[float, float]]:
    """(x, x * 2^bits) where FP32 holds the product without rounding: the cast then rounds once."""
    pairs = [(x, math.ldexp(x, bits)) for x in values]
    return [
        (x, y)
        for x, y in pairs
        if abs(y) <= FLOAT32_MAX and float(torch.tensor(y, dtype=torch.float64).float()) == y
    ]


def cast(values: list[float], fmt: FloatFormat) -> list[float]:
    return list(torch.tensor(values, dtype=torch.float32).to(TORCH[fmt.name]).double().tolist())


def gone_past_the_range(rounded: float, fmt: FloatFormat) -> bool:
    """True for what a cast makes of a number past the range. For float8_e4m3fn torch's may be its max."""
    return not math.isfinite(rounded) or (not fmt.has_infinity and abs(rounded) == fmt.max)


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
@given(st.lists(numbers, max_size=30), small_shifts)
def test_a_shifted_histogram_says_what_a_cast_at_that_scale_does(
    fmt: FloatFormat, values: list[float], bits: int
) -> None:
    pairs = scaled_exactly(values, bits)
    originals, scaled = [x for x, _ in pairs], [y for _, y in pairs]
    rounded = cast(scaled, fmt)
    histogram = histogram_of(originals).shift(bits)

    assert histogram == histogram_of(scaled)
    assert histogram.flushed(fmt) == sum(r == 0 and y != 0 for y, r in zip(scaled, rounded, strict=True))
    assert histogram.subnormal(fmt) == sum(
        r != 0 and abs(y) < fmt.min_normal for y, r in zip(scaled, rounded, strict=True)
    )
    assert histogram.rounded_to(fmt).zeros == sum(r == 0 for r in rounded)
    for y, r in zip(scaled, rounded, strict=True):
        assert gone_past_the_range(r, fmt) or abs(y) < fmt.overflow_at
        assert math.isfinite(r) or abs(y) >= fmt.overflow_at
    assert histogram.overflowed(fmt) == sum(abs(y) >= 2.0 ** (fmt.max_exponent + 1) for y in scaled)


@given(st.lists(numbers, max_size=30), st.lists(numbers, max_size=30))
def test_two_histograms_add_up_to_that_of_both_tensors(first: list[float], second: list[float]) -> None:
    assert histogram_of(first) + histogram_of(second) == histogram_of(first + second)


@given(st.lists(numbers, max_size=30), small_shifts, small_shifts)
def test_shifts_add_up(values: list[float], first: int, second: int) -> None:
    assert histogram_of(values).shift(first).shift(second) == histogram_of(values).shift(first + second)


# The counters read the upper half of an FP32 number: below 2^-132 it no longer tells exponents apart.
counted = numbers.filter(lambda x: x == 0 or abs(x) >= 2.0**-132)


@given(st.lists(counted, min_size=1, max_size=30))
def test_the_counters_of_a_pass_count_the_same(values: list[float]) -> None:
    exact = torch.tensor(values, dtype=torch.float32)
    tally = Tally()
    tally.add(exact.half(), exact, ties=True)
    (stats,) = tally.read()
    assert stats.histogram == histogram_of(values)
    assert stats.flushed == histogram_of(values).flushed(FLOAT16)


@pytest.mark.parametrize(
    ("value", "flushed", "subnormal", "overflowed"),
    [
        (65504.0, 0, 0, 0),
        (65519.99609375, 0, 0, 0),  # the FP32 number before 65520: rounds down to 65504
        (65536.0, 0, 0, 1),
        (2.0**-14, 0, 0, 0),
        (next_float32(2.0**-14, 0.0), 0, 1, 0),
        (2.0**-24, 0, 1, 0),
        (next_float32(2.0**-25, 1.0), 0, 1, 0),  # past the tie: rounds up to 2^-24
        (2.0**-25, 1, 0, 0),  # the tie goes to even, which is zero
        (-0.0, 0, 0, 0),
        (FLOAT32_TINY, 1, 0, 0),
    ],
)
def test_the_edges_of_float16(value: float, flushed: int, subnormal: int, overflowed: int) -> None:
    histogram = histogram_of([value])
    assert histogram.flushed(FLOAT16) == flushed
    assert histogram.subnormal(FLOAT16) == subnormal
    assert histogram.overflowed(FLOAT16) == overflowed


def test_a_tie_above_the_largest_number_goes_to_the_even_mantissa() -> None:
    """65504 ends in ones, so half a step above overflows; 448 ends in a zero and takes the tie."""
    assert cast([65520.0], FLOAT16) == [math.inf]
    assert FLOAT16.overflow_at == 65520.0
    assert cast([464.0], FLOAT8_E4M3FN) == [448.0]
    assert FLOAT8_E4M3FN.overflow_at == math.nextafter(464.0, math.inf)

"""How many elements of some gradients end in each of a format's zones: the one place that counts them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ampdoctor.facts.floats import FloatFormat
from ampdoctor.facts.histogram import ExponentHistogram


@dataclass(frozen=True)
class ZoneCounts:
    """Elements by what rounding to the format does to them."""

    flushed: int
    subnormal: int
    normal: int
    overflowed: int
    """At least: of the exponent of the largest numbers that fit, one element a tensor is counted at most."""


def zone_counts(tensors: Iterable[tuple[ExponentHistogram, float]], fmt: FloatFormat) -> ZoneCounts:
    """The counts over tensors, each with its bins and its largest magnitude before rounding."""
    flushed = subnormal = overflowed = nonzero = 0
    for histogram, absmax in tensors:
        nonzero += histogram.nonzero
        flushed += histogram.flushed(fmt)
        subnormal += histogram.subnormal(fmt)
        overflowed += max(histogram.overflowed(fmt), 1) if absmax >= fmt.overflow_at else 0
    return ZoneCounts(flushed, subnormal, nonzero - flushed - subnormal - overflowed, overflowed)

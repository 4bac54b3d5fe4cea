"""The four stretches of the number line that a format tells apart, in whole exponents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ampdoctor.facts.floats import FloatFormat
from ampdoctor.facts.histogram import ExponentHistogram, exponent_of

ZERO, SUBNORMAL, NORMAL, OVERFLOW = "zero", "subnormal", "normal", "overflow"


@dataclass(frozen=True)
class Zone:
    """What rounding does to the magnitudes of these exponents."""

    name: str
    """``zero`` | ``subnormal`` | ``normal`` | ``overflow``"""
    low: int | None
    """The lowest exponent; None where the zone goes on without end."""
    high: int | None
    """The highest exponent, included; None where the zone goes on without end."""


def zones(fmt: FloatFormat) -> tuple[Zone, Zone, Zone, Zone]:
    """The format's zones from the smallest magnitudes to the largest.

    Two edges lie inside an exponent: the tie 2^-25 of FP16 is still zero, and from 65520 on to 2^16 a value
    overflows already.
    """
    flush, normal = exponent_of(fmt.flush_at), exponent_of(fmt.min_normal)
    return (
        Zone(ZERO, None, flush - 1),
        Zone(SUBNORMAL, flush, normal - 1),
        Zone(NORMAL, normal, fmt.max_exponent),
        Zone(OVERFLOW, fmt.max_exponent + 1, None),
    )


def zone_of(exponent: int, fmt: FloatFormat) -> str:
    """The name of the zone that holds the exponent."""
    return next(z.name for z in zones(fmt) if z.high is None or exponent <= z.high)


def elements_by_zone(histogram: ExponentHistogram, fmt: FloatFormat) -> Iterator[tuple[int, str, int]]:
    """(exponent, zone, elements) in rising order; elements at the tie 2^-25 of FP16 come apart, as zero."""
    tie = exponent_of(fmt.flush_at)
    for exponent in sorted(histogram.counts):
        elements = histogram.counts[exponent]
        ties = histogram.powers.get(exponent, 0) if exponent == tie else 0
        if ties:
            yield exponent, ZERO, ties
        if elements > ties:
            yield exponent, zone_of(exponent, fmt), elements - ties

"""The exponents of a histogram as columns of a terminal, zone by zone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from ampdoctor.facts.floats import FloatFormat
from ampdoctor.facts.histogram import ExponentHistogram
from ampdoctor.facts.zones import OVERFLOW, ZERO, Zone, elements_by_zone, zones

_STEPS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Column:
    """One column: the exponents from ``low`` to ``high``, all in one zone."""

    zone: str
    low: int
    high: int


@dataclass(frozen=True)
class Axis:
    """Columns from the smallest exponents to the largest; the outermost take in what lies beyond them."""

    fmt: FloatFormat
    columns: tuple[Column, ...]

    @property
    def width(self) -> int:
        """Characters it takes, with one between two zones."""
        return len(self.columns) + len(self.spans()) - 1

    def spans(self) -> list[tuple[str, int]]:
        """(zone, number of columns) from left to right."""
        return [(zone, len(list(group))) for zone, group in groupby(self.columns, key=lambda c: c.zone)]

    def counts(self, histogram: ExponentHistogram) -> list[int]:
        """Elements per column."""
        totals = [0] * len(self.columns)
        for exponent, zone, elements in elements_by_zone(histogram, self.fmt):
            totals[self._column_of(exponent, zone)] += elements
        return totals

    def heights(self, histogram: ExponentHistogram) -> list[float]:
        """Elements per exponent in each column, so that a narrower column does not look emptier."""
        counts = zip(self.counts(histogram), self.columns, strict=True)
        return [n / (c.high - c.low + 1) for n, c in counts]

    def _column_of(self, exponent: int, zone: str) -> int:
        own = [i for i, c in enumerate(self.columns) if c.zone == zone]
        candidates = own or range(len(self.columns))
        return min(candidates, key=lambda i: _distance(exponent, self.columns[i]))


def axis_for(
    histogram: ExponentHistogram,
    fmt: FloatFormat,
    width: int,
    outside: tuple[int, int] = (6, 8),
    coarsest: int = 1,
) -> Axis:
    """The axis in at most ``width`` characters.

    The whole format is on it, with ``outside`` columns at least for zero and overflow, where columns of up to
    ``coarsest`` exponents make room for that; else only the exponents that occur, and what is around them.
    """
    zero, subnormal, normal, overflow = zones(fmt)
    inner = [subnormal, normal]
    occupied = sorted(histogram.counts) or [0]
    for step in _STEPS:
        if step > coarsest:
            break
        columns = [c for z in inner for c in _columns(z.name, _low(z), _high(z), step)]
        room = width - 3 - len(columns) - sum(outside)
        if room >= 0:
            # what is left over goes to the side that has something to show: first the flushed ones
            below = max(0, -(-(_high(zero) - occupied[0] + 1) // step) - outside[0])
            more_below = min(room, below)
            above = max(0, -(-(occupied[-1] - _low(overflow) + 1) // step) - outside[1])
            more_above = min(room - more_below, above)
            lows = _outwards(ZERO, _high(zero), -step, outside[0] + more_below)
            highs = _outwards(OVERFLOW, _low(overflow), step, outside[1] + more_above)
            return Axis(fmt, (*reversed(lows), *columns, *highs))
    return _zoomed(occupied[0], occupied[-1], fmt, width)


def _zoomed(lowest: int, highest: int, fmt: FloatFormat, width: int) -> Axis:
    """Only what occurs, and as much around it as there is room for, up to eight exponents."""
    for step in _STEPS:
        for margin in (8, 4, 2, 0):
            columns = tuple(_clipped(zones(fmt), lowest - margin, highest + margin, step))
            axis = Axis(fmt, columns)
            if axis.width <= width:
                return axis
    return axis


def _clipped(all_zones: Iterable[Zone], lowest: int, highest: int, step: int) -> Iterator[Column]:
    for zone in all_zones:
        low = lowest if zone.low is None else max(zone.low, lowest)
        high = highest if zone.high is None else min(zone.high, highest)
        if low <= high:
            yield from _columns(zone.name, low, high, step)


def _columns(zone: str, low: int, high: int, step: int) -> list[Column]:
    return [Column(zone, start, min(start + step - 1, high)) for start in range(low, high + 1, step)]


def _outwards(zone: str, start: int, step: int, number: int) -> list[Column]:
    """Columns that lead away from the format's range, the nearest first."""
    nearest = [start + i * step for i in range(number)]
    width = abs(step)
    return [Column(zone, e - width + 1, e) if step < 0 else Column(zone, e, e + width - 1) for e in nearest]


def _low(zone: Zone) -> int:
    assert zone.low is not None
    return zone.low


def _high(zone: Zone) -> int:
    assert zone.high is not None
    return zone.high


def _distance(exponent: int, column: Column) -> int:
    return max(column.low - exponent, exponent - column.high, 0)


def beyond(axis: Axis, histogram: ExponentHistogram) -> tuple[int | None, int | None]:
    """The lowest and the highest exponent that occur outside the axis's columns; None where none does."""
    occupied: Sequence[int] = sorted(e for e, n in histogram.counts.items() if n) or [axis.columns[0].low]
    low = occupied[0] if occupied[0] < axis.columns[0].low else None
    high = occupied[-1] if occupied[-1] > axis.columns[-1].high else None
    return low, high

"""What the page's charts show, as numbers: where each column stands, how high it is, what the figures say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

from ampdoctor.diagnose.report import GradientBins, GradientHistogram, LossScale, Report
from ampdoctor.diagnose.wording import percent, two_to
from ampdoctor.facts.floats import FLOAT_FORMATS, FloatFormat
from ampdoctor.facts.histogram import exponent_of
from ampdoctor.facts.zones import zone_of, zones
from ampdoctor.render.loss_scale_text import judged_word
from ampdoctor.scales.powers_of_two import HIGHEST, LOWEST
from ampdoctor.scales.zone_counts import zone_counts

_BELOW, _ABOVE = 16, 9
"""Exponents shown at most beyond those that the format holds; what lies further out is in the last column."""
_LEAST_SHOWN = 4
"""Exponents shown at least beyond an end of the range."""
_TICKS = 8
"""Exponents between two marks of the axis."""
_VISIBLE = 1.5
"""Height, in percent, of a column that is not empty: less could not be seen."""


@dataclass(frozen=True)
class Column:
    """One column of a chart. Lengths are percent of the chart's height."""

    exponent: int
    height: float
    kind: str
    """Of a gradient the zone; of a loss scale ``works`` | ``overflows`` | ``fails``."""
    words: str


@dataclass(frozen=True)
class Mark:
    """A label under or over a chart."""

    words: str
    at: float
    """Percent of the chart's width."""
    width: float = 0.0
    """Percent of the chart's width, for a label over a stretch of it."""


@dataclass(frozen=True)
class SweepChart:
    """The share of gradient elements that become zero at every loss scale."""

    columns: tuple[Column, ...]
    marks: tuple[Mark, ...]
    configured: float
    """Percent of the width."""
    recommended: float | None


@dataclass(frozen=True)
class Figures:
    """Shares of the elements that are nonzero in the reference, in words."""

    zero: str
    subnormal: str
    normal: str
    overflow: str


@dataclass(frozen=True)
class GradientChart:
    """The histogram of all gradients at one loss scale, and what a page needs to shift it."""

    exponent: int
    """Of the loss scale at which it is drawn: the configured one, or the power of two below it."""
    configured: str
    """What that is, in words."""
    recommended: int | None
    low: int
    high: int
    """The exponents of the first and the last column."""
    columns: tuple[Column, ...]
    bands: tuple[Mark, ...]
    """The format's zones."""
    marks: tuple[Mark, ...]
    figures: Figures
    data: Mapping[str, Any]


def sweep_chart(report: Report) -> SweepChart | None:
    """One column per power of two; None where loss scales were not searched."""
    scales = report.loss_scale
    if not scales.underflow_fraction:
        return None
    count = HIGHEST - LOWEST + 1
    return SweepChart(
        tuple(_scale_column(scales, k) for k in range(LOWEST, HIGHEST + 1)),
        tuple(Mark(two_to(k), _middle(k - LOWEST, count)) for k in range(LOWEST, HIGHEST + 1, _TICKS)),
        _middle(_clamped(math.log2(scales.judged)) - LOWEST, count),
        None if scales.recommended is None else _middle(math.log2(scales.recommended) - LOWEST, count),
    )


def _scale_column(scales: LossScale, k: int) -> Column:
    share = scales.underflow_fraction.get(str(2**k))
    if share is None:
        return Column(k, 100.0, "overflows", f"{two_to(k)}: overflows")
    works = scales.window is not None and scales.window[0] <= 2**k <= scales.window[1]
    words = f"{two_to(k)}: {percent(share)} become zero{', works' if works else ''}"
    return Column(k, _height(share), "works" if works else "fails", words)


def gradient_chart(report: Report) -> GradientChart | None:
    """All gradients at the configured loss scale; None where the report has none."""
    histogram = report.gradient_histogram
    if histogram is None:
        return None
    fmt = FLOAT_FORMATS[histogram.dtype]
    low, high = _axis(histogram, fmt)
    scales = report.loss_scale
    exponent = int(_clamped(math.floor(math.log2(scales.judged))))
    count = high - low + 1
    return GradientChart(
        exponent,
        f"{'' if scales.judged == 2.0**exponent else 'nearest to '}{judged_word(scales)}",
        None if report.loss_scale.recommended is None else exponent_of(report.loss_scale.recommended),
        low,
        high,
        _gradient_columns(histogram.total, fmt, exponent, low, high),
        tuple(_bands(fmt, low, high)),
        tuple(Mark(two_to(e), _middle(e - low, count)) for e in range(low, high + 1) if e % _TICKS == 0),
        figures(histogram.total, fmt, exponent),
        {
            "low": low,
            "high": high,
            "visible": _VISIBLE,
            "bins": [_bins(bins, fmt) for bins in (histogram.total, *histogram.layers)],
        },
    )


def figures(bins: GradientBins, fmt: FloatFormat, exponent: int) -> Figures:
    """What rounding to the format does to these gradients at loss scale 2^exponent."""
    lost = bins.underflow_fraction[exponent] if exponent < len(bins.underflow_fraction) else 0.0
    counts = zone_counts([(bins.histogram.shift(exponent), math.ldexp(bins.absmax, exponent))], fmt)
    return Figures(
        percent(lost),
        _share(counts.subnormal, bins.nonzero),
        _share(counts.normal, bins.nonzero),
        _share(counts.overflowed, bins.nonzero),
    )


def _share(elements: int, of: int) -> str:
    return percent(min(elements / of, 1.0) if of else 0.0)


def _gradient_columns(
    bins: GradientBins, fmt: FloatFormat, exponent: int, low: int, high: int
) -> tuple[Column, ...]:
    counts = dict.fromkeys(range(low, high + 1), 0)
    for e, n in bins.histogram.shift(exponent).counts.items():
        counts[min(max(e, low), high)] += n
    most = max(counts.values(), default=0) or 1
    beyond = {low: " and less", high: " and more"}
    return tuple(
        Column(e, _height(n / most), zone_of(e, fmt), f"{two_to(e)}{beyond.get(e, '')}: {n:,}")
        for e, n in counts.items()
    )


def _bins(bins: GradientBins, fmt: FloatFormat) -> dict[str, Any]:
    """What the page's script draws and chooses from: the bins, as pairs, and the figures at every scale."""
    return {
        "counts": list(bins.histogram.counts.items()),
        "figures": [astuple(figures(bins, fmt, k)) for k in range(LOWEST, HIGHEST + 1)],
    }


def _axis(histogram: GradientHistogram, fmt: FloatFormat) -> tuple[int, int]:
    """The first and last exponent that a gradient has at any loss scale, or the format's ends near them."""
    flush, top = exponent_of(fmt.flush_at), fmt.max_exponent
    counts = histogram.total.histogram.counts
    least, most = min(counts, default=flush) + LOWEST, max(counts, default=top) + HIGHEST
    if top - flush > 2 * HIGHEST:  # a range so wide that its ends are far away
        return max(least, flush - _BELOW), min(most, top + _ABOVE)
    return min(max(least, flush - _BELOW), flush - _LEAST_SHOWN), max(
        min(most, top + _ABOVE), top + _LEAST_SHOWN
    )


def _bands(fmt: FloatFormat, low: int, high: int) -> list[Mark]:
    """The zones that the axis shows."""
    count, bands = high - low + 1, []
    for zone in zones(fmt):
        first = low if zone.low is None else max(zone.low, low)
        last = high if zone.high is None else min(zone.high, high)
        if first <= last:
            bands.append(Mark(zone.name, 100 * (first - low) / count, 100 * (last - first + 1) / count))
    return bands


def _middle(column: float, count: int) -> float:
    return 100 * (column + 0.5) / count


def _height(share: float) -> float:
    return max(100 * share, _VISIBLE) if share else 0.0


def _clamped(exponent: float) -> float:
    return min(max(exponent, LOWEST), HIGHEST)

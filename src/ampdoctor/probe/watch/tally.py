"""Counters of every tensor of a pass, kept on the tensors' device and read back once at the end."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ampdoctor.facts.floats import FLOAT_FORMATS
from ampdoctor.facts.histogram import ExponentHistogram
from ampdoctor.facts.stats import TensorStats
from ampdoctor.probe.watch import exponents as by_exponent
from ampdoctor.probe.watch.exponents import INF, LOWEST, NAN, POWERS, ZERO, ExponentCounter
from ampdoctor.probe.watch.fused import FusedCounter
from ampdoctor.probe.watch.nonfinite import Exact, exact_counts, readable, with_counts

Extremes = tuple[float, float]
"""(min, max); NaN if any element is."""


@dataclass
class _Row:
    """What is known on the host when a tensor is counted; the rest is filled in by ``read``."""

    dtype: str
    shape: tuple[int, ...]
    rounded: bool = False
    """The value before rounding was seen."""
    ties: bool = False
    """... and the histogram is of that, with ties told apart."""
    empty: bool = False
    counted: bool = True
    """By exponent; else only the range is known."""
    same_as: int | None = None
    """The row of the tensor that this one is a wider copy of."""


class Tally:
    """Collects the statistics of one pass's tensors. ``add`` never waits for the device; ``read`` does."""

    def __init__(self) -> None:
        self._rows: list[_Row] = []
        self._stats: list[TensorStats] = []
        """Of the rows that were read."""
        self._exact: dict[int, Exact] = {}
        self._count_from_here()

    def _count_from_here(self) -> None:
        self._exponents = ExponentCounter()
        self._extremes = _Scalars()
        self._extremes_before = _Scalars()
        self._nonzero_before = _Scalars()
        self._fused = FusedCounter()

    def add(
        self,
        output: Tensor,
        unrounded: Tensor | None,
        ties: bool = False,
        exponents: bool = True,
        exact: bool = False,
    ) -> int:
        """The row number of ``output``, a dense floating-point tensor, now counted.

        ``unrounded`` is the FP32 value that was rounded to give ``output``, where it is at hand: flushed and
        overflowed elements are then counted. With ``ties`` the histogram is of those values, exact powers of
        two told apart: what a loss scale would do is read from it. Without ``exponents`` there is none; NaNs
        and infinities are then counted as one, until the second look counts them. With ``exact`` they are
        counted at once, and the largest of the rest with them, where no device is waited for: on a CPU.
        """
        row = len(self._rows)
        if output.is_complex():
            output = torch.view_as_real(output)
        output = output.detach()
        known = _Row(str(output.dtype).removeprefix("torch."), tuple(output.shape))
        self._rows.append(known)
        if output.numel() == 0:
            known.empty = True
            return row
        if unrounded is None and _on_gpu(output) and self._fused.add(row, output, exponents):
            known.counted = exponents
            return row
        low, high = _aminmax(output)
        self._extremes.add(row, low, high)
        if exact and by_exponent.on_host(output) and not _are_finite(low, high):
            self._exact[row] = exact_counts(output)
        if unrounded is None or unrounded.shape != output.shape:
            if exponents:
                self._exponents.add(row, output, ties=False)
            else:
                known.counted = False
            return row
        known.rounded, known.ties = True, ties
        before = readable(unrounded.detach())
        self._extremes_before.add(row, *_aminmax(before))
        if not ties:
            self._nonzero_before.add(row, torch.count_nonzero(before))
        self._exponents.add(row, before if ties else output, ties)
        return row

    def add_upcast(self, output: Tensor, source: int) -> int:
        """The row number of ``output``, which holds the values of row ``source`` in a wider dtype."""
        self._rows.append(_Row(str(output.dtype).removeprefix("torch."), tuple(output.shape), same_as=source))
        return len(self._rows) - 1

    def read(self) -> list[TensorStats]:
        """The statistics of every row, in the order they were added. Waits for the device."""
        extremes, before = self._extremes.read(), self._extremes_before.read()
        nonzero_before = self._nonzero_before.read()
        bins = self._exponents.read()
        fused = self._fused.read()
        self._count_from_here()
        extremes |= fused.ranges
        bins |= fused.bins
        stats = self._stats
        for i, row in enumerate(self._rows[len(stats) :], len(stats)):
            if row.same_as is not None:
                stats.append(_upcast(stats[row.same_as], row))
                continue
            if row.empty:
                empty = ExponentHistogram()
                stats.append(TensorStats(row.dtype, row.shape, None, None, None, 0, 0, 0, None, None, empty))
                continue
            (low, high) = extremes[i]
            if not row.counted:
                found = _by_range(row, (low, high))
            elif not row.rounded:
                found = _plain(row, (low, high), _histogram(bins[i]))
            elif row.ties:
                found = _by_values_before(row, (low, high), _histogram(bins[i]), before[i])
            else:
                nonzero = int(nonzero_before[i][0])
                found = _by_elements(row, (low, high), _histogram(bins[i]), before[i], nonzero)
            counts = self._exact.get(i)
            stats.append(found if counts is None else with_counts(found, counts))
        return stats


def _on_gpu(x: Tensor) -> bool:
    return x.is_cuda


class _Scalars:
    """Zero-dimensional tensors, by row, brought to the host together.

    On a CPU they are plain numbers at once: a small tensor that stays, between large ones that go, keeps
    their memory from being used again.
    """

    def __init__(self) -> None:
        self._values: dict[tuple[torch.device, torch.dtype], list[tuple[int, tuple[Tensor, ...]]]] = (
            defaultdict(list)
        )
        self._found: dict[int, tuple[float, ...]] = {}

    def add(self, row: int, *values: Tensor) -> None:
        if by_exponent.on_host(values[0]):
            self._found[row] = tuple(float(v) for v in values)
            return
        self._values[values[0].device, values[0].dtype].append((row, values))

    def read(self) -> dict[int, tuple[float, ...]]:
        """Row -> its values. One transfer per device and dtype."""
        found = self._found
        for kept in self._values.values():
            width = len(kept[0][1])
            stacked = torch.stack([value for _, values in kept for value in values]).double().cpu()
            numbers = stacked.view(len(kept), width).tolist()
            found.update((row, tuple(own)) for (row, _), own in zip(kept, numbers, strict=True))
        return found


def _aminmax(x: Tensor) -> tuple[Tensor, Tensor]:
    """(min, max), NaN if any element is; the 8-bit formats have no kernel for it."""
    low, high = torch.aminmax(readable(x))
    return low, high


def _are_finite(low: Tensor, high: Tensor) -> bool:
    return math.isfinite(float(low)) and math.isfinite(float(high))


def histogram_of(x: Tensor) -> ExponentHistogram:
    """The exponents of one tensor with at least one element. Waits for its device."""
    counter = ExponentCounter()
    counter.add(0, x, ties=True)
    return _histogram(counter.read()[0])


def _histogram(bins: list[tuple[int, int]]) -> ExponentHistogram:
    counts: dict[int, int] = {}
    powers: dict[int, int] = {}
    special = {ZERO: 0, INF: 0, NAN: 0}
    for bin_, n in bins:
        if bin_ in special:
            special[bin_] = n
        elif bin_ < POWERS:
            counts[bin_ + LOWEST] = counts.get(bin_ + LOWEST, 0) + n
        else:
            exponent = bin_ - POWERS + LOWEST
            powers[exponent] = n
            counts[exponent] = counts.get(exponent, 0) + n
    return ExponentHistogram(counts, special[ZERO], special[INF], special[NAN], powers)


def _absmax(extremes: Extremes) -> float | None:
    """The largest magnitude; None unless all is finite (the second look counts the finite ones then)."""
    return max(map(abs, extremes)) if all(map(math.isfinite, extremes)) else None


def _plain(row: _Row, extremes: Extremes, histogram: ExponentHistogram) -> TensorStats:
    return TensorStats(
        row.dtype, row.shape, *extremes, _absmax(extremes), histogram.nans, histogram.infs, histogram.zeros,
        None, None, histogram,
    )  # fmt: skip


def _by_range(row: _Row, extremes: Extremes) -> TensorStats:
    nan = int(math.isnan(extremes[0]))
    inf = int(not nan and _absmax(extremes) is None)
    return TensorStats(
        row.dtype, row.shape, *extremes, _absmax(extremes), nan, inf, None, None, None, ExponentHistogram()
    )


def _by_values_before(
    row: _Row, extremes: Extremes, histogram: ExponentHistogram, before: tuple[float, ...]
) -> TensorStats:
    """From a histogram of the values before rounding, which knows its ties."""
    fmt = FLOAT_FORMATS[row.dtype]
    flushed = histogram.flushed(fmt)
    absmax_before = _absmax((before[0], before[1]))
    overflowed = 0
    if _absmax(extremes) is None:
        # Values between ``overflow_at`` and the next power of two share their exponent with representable
        # ones: such a tensor counts as one overflow, until the second look counts it.
        just_over = absmax_before is not None and absmax_before >= fmt.overflow_at
        overflowed = max(histogram.overflowed(fmt), int(just_over))
    return TensorStats(
        row.dtype, row.shape, *extremes, _absmax(extremes), histogram.nans, histogram.infs + overflowed,
        histogram.zeros + flushed, flushed, overflowed, histogram, absmax_before,
    )  # fmt: skip


def _by_elements(
    row: _Row, extremes: Extremes, histogram: ExponentHistogram, before: tuple[float, ...], nonzero: int
) -> TensorStats:
    """From a histogram of the rounded elements, and the number of nonzero values before rounding."""
    absmax_before = _absmax((before[0], before[1]))
    flushed = max(0, nonzero - (histogram.total - histogram.zeros))
    # With infinities among the values before, those of the elements may be the same ones.
    overflowed = histogram.infs if absmax_before is not None else 0 if not histogram.infs else None
    return TensorStats(
        row.dtype, row.shape, *extremes, _absmax(extremes), histogram.nans, histogram.infs, histogram.zeros,
        flushed, overflowed, histogram, absmax_before,
    )  # fmt: skip


def _upcast(source: TensorStats, row: _Row) -> TensorStats:
    histogram = source.histogram
    if histogram.zeros != source.zeros or histogram.infs != source.inf:
        histogram = histogram.rounded_to(FLOAT_FORMATS[source.dtype])
    return replace(
        source,
        dtype=row.dtype,
        shape=row.shape,
        flushed=None,
        overflowed=None,
        histogram=histogram,
        absmax_before_rounding=None,
    )

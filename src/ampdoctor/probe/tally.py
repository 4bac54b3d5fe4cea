"""Counters of every tensor of a pass, kept on the tensors' device and read back once at the end.

A tensor's exponents are counted from its bits: the 15 bits below the sign of an FP16 or BF16 number, or the
upper 15 of an FP32 number, name exponent and leading mantissa, and one ``bincount`` over them costs about a
tenth of binning floats (measured: 0.8 ns an element). Tensors too small to pay for a 32768-bin count each are
pooled and counted together.
"""

from __future__ import annotations

import functools
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ampdoctor.facts.floats import FLOAT_FORMATS
from ampdoctor.facts.histogram import ExponentHistogram
from ampdoctor.facts.stats import TensorStats

_PATTERNS = 1 << 15
_LOWEST = -133
"""Exponent of the smallest nonzero upper half of an FP32 number: 2^-126 with 7 mantissa bits below it."""
_EXPONENTS = 127 - _LOWEST + 1
_POWERS = _EXPONENTS
"""Bins from here on hold the exact powers of two; the ones before, all other values, by exponent."""
_ZERO, _INF, _NAN = 2 * _EXPONENTS, 2 * _EXPONENTS + 1, 2 * _EXPONENTS + 2
_BINS = 2 * _EXPONENTS + 3
_SMALL = 1 << 14
"""Elements up to which a tensor is pooled: there a count of its own (100 us) costs more than its share."""
_POOL_LIMIT = 1 << 22
"""Elements at which a pool is counted, to bound its memory (8 MiB)."""
_CHUNK = 1 << 20
"""Elements counted at a time: the masked copy then stays in cache (measured 3x faster than in one piece)."""


@dataclass(frozen=True)
class _Pattern:
    """How 15 bits of a number name its bin."""

    exponent_bits: int
    complete: bool
    """The bits tell an exact power of two from its neighbours (an FP32 number's upper half does not)."""
    sticky: bool = False
    """The lowest bit says whether any bit below the upper half is set, which makes FP32's complete."""

    def bins(self) -> Tensor:
        """The bin of each pattern; shape [32768]."""
        mantissa_bits = 15 - self.exponent_bits
        bias = 2 ** (self.exponent_bits - 1) - 1
        patterns = torch.arange(_PATTERNS)
        field, mantissa = patterns >> mantissa_bits, patterns & ((1 << mantissa_bits) - 1)
        # A subnormal's exponent is that of its leading mantissa bit; frexp gives it exactly.
        fraction, leading = torch.frexp(mantissa.clamp(min=1).double())
        exponent = torch.where(field == 0, leading.long() - bias - mantissa_bits, field - bias)
        bins = exponent - _LOWEST
        if self.complete:
            bins[torch.where(field == 0, fraction == 0.5, mantissa == 0)] += _POWERS
        top = (1 << self.exponent_bits) - 1
        bins[(field == top) & (mantissa == 0)] = _INF
        bins[(field == top) & (mantissa > 0)] = _NAN
        bins[0] = _ZERO
        return bins

    def of(self, flat: Tensor) -> Tensor:
        """The patterns of a contiguous 1-d tensor; int16, same length."""
        halves = flat.view(torch.int16)
        if flat.dtype != torch.float32:
            return halves & 0x7FFF
        upper = halves[1::2] & 0x7FFF  # little-endian: the upper half is the second
        return upper.bitwise_or_(halves[0::2] != 0) if self.sticky else upper


_HALF, _BRAIN = _Pattern(5, True), _Pattern(8, True)
_SINGLE, _SINGLE_STICKY = _Pattern(8, False), _Pattern(8, True, sticky=True)


@dataclass
class _Row:
    """What is known on the host when a tensor is counted; the rest is filled in by ``read``."""

    dtype: str
    shape: tuple[int, ...]
    rounded: bool
    """The value before rounding was seen, and the histogram is of that."""
    ties: bool
    """... and tells ties apart."""
    empty: bool
    same_as: int | None = None
    """The row of the tensor that this one is a wider copy of."""


class Tally:
    """Collects the statistics of one pass's tensors. ``add`` never waits for the device; ``read`` does."""

    def __init__(self) -> None:
        self._rows: list[_Row] = []
        self._ranges: list[Tensor] = []
        self._counts: dict[int, Tensor] = {}
        self._nonzero: dict[int, Tensor] = {}
        self._unrounded_ranges: dict[int, Tensor] = {}
        self._pools: dict[_Key, list[tuple[int, Tensor]]] = {}
        self._pooled: dict[_Key, int] = {}
        self._pool_counts: list[tuple[list[int], Tensor]] = []
        self._bins: dict[_Key, Tensor] = {}

    def add(self, output: Tensor, unrounded: Tensor | None, ties: bool = False) -> int:
        """The row number of ``output``, a dense floating-point tensor, now counted.

        ``unrounded`` is the FP32 value that was rounded to give ``output``, where it is at hand: the
        histogram is then taken from it, and flushed and overflowed elements are counted. With ``ties`` that
        histogram tells exact powers of two apart, for a third more work.
        """
        row = len(self._rows)
        if output.is_complex():
            output = torch.view_as_real(output)
        empty = output.numel() == 0
        if unrounded is not None and (empty or unrounded.shape != output.shape):
            unrounded = None
        counted = output if unrounded is None else unrounded
        self._rows.append(
            _Row(
                str(output.dtype).removeprefix("torch."),
                tuple(output.shape),
                unrounded is not None,
                unrounded is not None and ties,
                empty,
            )
        )
        if empty:
            self._ranges.append(torch.zeros(2))
            return row
        self._ranges.append(_range(output))
        if unrounded is not None:
            if not ties:
                self._nonzero[row] = torch.count_nonzero(output)
            self._unrounded_ranges[row] = _range(unrounded)
        self._count(row, counted)
        return row

    def add_upcast(self, output: Tensor, source: int) -> int:
        """The row number of ``output``, which holds the values of row ``source`` in a wider dtype."""
        row = len(self._rows)
        self._rows.append(
            _Row(str(output.dtype).removeprefix("torch."), tuple(output.shape), False, False, False, source)
        )
        self._ranges.append(self._ranges[source])
        return row

    def _count(self, row: int, x: Tensor) -> None:
        if x.dtype not in _COUNTED:
            # float64 and the 8-bit formats: rare, and small enough to go through FP32's exponents.
            x = x.float()
        flat = x.detach().contiguous().view(-1)
        if flat.stride(0) != 1:
            flat = flat.as_strided((1,), (1,))  # one element, expanded: contiguous by name only
        if x.dtype == torch.float32:
            pattern = _SINGLE_STICKY if self._rows[row].ties else _SINGLE
        else:
            pattern = _HALF if x.dtype == torch.float16 else _BRAIN
        key = (x.device, pattern)
        if flat.numel() <= _SMALL:
            self._pools.setdefault(key, []).append((row, pattern.of(flat)))
            self._pooled[key] = self._pooled.get(key, 0) + flat.numel()
            if self._pooled[key] >= _POOL_LIMIT:
                self._drain(key)
            return
        patterns = _count_patterns(flat, pattern)
        total = torch.zeros(_BINS, dtype=patterns.dtype, device=x.device)
        self._counts[row] = total.index_add_(0, self._bin_table(key), patterns)

    def _bin_table(self, key: _Key) -> Tensor:
        table = self._bins.get(key)
        if table is None:
            table = self._bins[key] = key[1].bins().to(key[0])
        return table

    def _drain(self, key: _Key) -> None:
        pool = self._pools.pop(key, [])
        self._pooled[key] = 0
        if not pool:
            return
        rows = [row for row, _ in pool]
        sizes = torch.tensor([patterns.numel() for _, patterns in pool], device=key[0])
        bins = self._bin_table(key)[torch.cat([patterns for _, patterns in pool]).int()]
        owner = torch.repeat_interleave(
            torch.arange(len(pool), device=key[0]), sizes, output_size=sum(p.numel() for _, p in pool)
        )
        counts = _bincount(owner * _BINS + bins, len(pool) * _BINS)
        self._pool_counts.append((rows, counts.view(len(pool), _BINS)))

    def read(self) -> list[TensorStats]:
        """The statistics of every row, in the order they were added. Waits for the device once per kind."""
        for key in list(self._pools):
            self._drain(key)
        ranges = _to_host(self._ranges)
        nonzero = dict(zip(self._nonzero, _to_host(list(self._nonzero.values())), strict=True))
        unrounded = dict(
            zip(self._unrounded_ranges, _to_host(list(self._unrounded_ranges.values())), strict=True)
        )
        counts: dict[int, list[int]] = dict(
            zip(self._counts, _to_host(list(self._counts.values())), strict=True)
        )
        for rows, table in self._pool_counts:
            counts.update(zip(rows, table.cpu().tolist(), strict=True))
        stats: list[TensorStats] = []
        for i, row in enumerate(self._rows):
            if row.same_as is not None:
                stats.append(_upcast(stats[row.same_as], row))
            else:
                stats.append(_stats(row, ranges[i], counts.get(i), nonzero.get(i), unrounded.get(i)))
        return stats


_Key = tuple[torch.device, _Pattern]
_COUNTED = (torch.float16, torch.bfloat16, torch.float32)


def _range(x: Tensor) -> Tensor:
    """[min, max] of x in float64, on x's device; NaN if any element is."""
    low, high = torch.aminmax(x.detach() if x.dtype in _COUNTED else x.detach().double())
    return torch.stack((low, high)).double()


def _count_patterns(flat: Tensor, pattern: _Pattern) -> Tensor:
    """How often each 15-bit pattern occurs in a contiguous 1-d tensor; int64 [32768]."""

    def count(chunk: Tensor) -> Tensor:
        return _bincount(pattern.of(chunk), _PATTERNS)

    chunks = flat.split(_CHUNK)
    if flat.device.type != "cpu" or len(chunks) == 1:
        counts = [count(chunk) for chunk in chunks]
    else:
        # bincount runs on one core; torch lets go of the interpreter while it does.
        counts = list(_workers().map(count, chunks))
    return counts[0] if len(counts) == 1 else torch.stack(counts).sum(0)


@functools.cache
def _workers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=max(2, min(8, torch.get_num_threads())))


def _upcast(source: TensorStats, row: _Row) -> TensorStats:
    histogram = source.histogram
    if source.flushed is not None:
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


def _bincount(keys: Tensor, size: int) -> Tensor:
    if keys.device.type == "cpu":
        return torch.bincount(keys, minlength=size)
    # On CUDA, bincount reads its largest key back to the host; adding ones does not. (Not run on a GPU yet.)
    ones = torch.ones((), dtype=torch.int64, device=keys.device).expand(keys.numel())
    return torch.zeros(size, dtype=torch.int64, device=keys.device).index_add_(0, keys.int(), ones)


def _to_host(tensors: list[Tensor]) -> list:  # type: ignore[type-arg]
    """The values of equal-shaped tensors, with one transfer per device."""
    if not tensors:
        return []
    if len({t.device for t in tensors}) > 1:
        tensors = [t.cpu() for t in tensors]
    return list(torch.stack(tensors).cpu().tolist())


def _stats(
    row: _Row,
    value_range: list[float],
    counts: list[int] | None,
    nonzero: int | None,
    unrounded_range: list[float] | None,
) -> TensorStats:
    if row.empty or counts is None:
        return TensorStats(row.dtype, row.shape, None, None, None, 0, 0, 0, None, None, ExponentHistogram())
    low, high = value_range
    powers = {i + _LOWEST: n for i, n in enumerate(counts[_POWERS:_ZERO]) if n}
    by_exponent = dict(powers)
    for i, n in enumerate(counts[:_POWERS]):
        if n:
            by_exponent[i + _LOWEST] = by_exponent.get(i + _LOWEST, 0) + n
    histogram = ExponentHistogram(by_exponent, counts[_ZERO], counts[_INF], counts[_NAN], powers)
    finite = math.isfinite(low) and math.isfinite(high)
    absmax = max(abs(low), abs(high)) if finite else None
    if not row.rounded or unrounded_range is None:
        return TensorStats(
            row.dtype, row.shape, low, high, absmax, histogram.nans, histogram.infs, histogram.zeros,
            None, None, histogram,
        )  # fmt: skip
    if nonzero is None:
        zeros = histogram.zeros + histogram.flushed(FLOAT_FORMATS[row.dtype])
    else:
        zeros = histogram.total - nonzero
    overflowed = 0 if finite else _overflowed(histogram, unrounded_range, row.dtype)
    return TensorStats(
        row.dtype, row.shape, low, high, absmax, histogram.nans, histogram.infs + overflowed, zeros,
        max(0, zeros - histogram.zeros), overflowed, histogram,
        max(abs(v) for v in unrounded_range) if all(map(math.isfinite, unrounded_range)) else None,
    )  # fmt: skip


def _overflowed(histogram: ExponentHistogram, unrounded_range: list[float], dtype: str) -> int:
    """Finite elements past the format's range.

    Exact for all but those between ``max`` and the next power of two, which share their exponent with
    representable values: such a tensor counts as one overflow there, until the second look counts it.
    """
    fmt = FLOAT_FORMATS[dtype]
    absmax = max(abs(v) for v in unrounded_range)
    just_over = math.isfinite(absmax) and absmax >= fmt.overflow_at
    return max(histogram.overflowed(fmt), int(just_over))

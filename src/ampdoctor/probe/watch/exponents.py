"""Counts a tensor's elements by binary exponent, from their bits.

The 15 bits below the sign of an FP16 or BF16 number, or the upper 15 of an FP32 number, name exponent and
leading mantissa, and one ``bincount`` over them costs about a tenth of binning floats (measured: 0.8 ns an
element). Tensors too small to pay for a 32768-bin count each are pooled and counted together.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

_PATTERNS = 1 << 15
LOWEST = -133
"""Exponent of the smallest nonzero upper half of an FP32 number: 2^-126 with 7 mantissa bits below it."""
EXPONENTS = 127 - LOWEST + 1
POWERS = EXPONENTS
"""Bins from here on hold the exact powers of two; the ones before, all other values, by exponent."""
ZERO, INF, NAN = 2 * EXPONENTS, 2 * EXPONENTS + 1, 2 * EXPONENTS + 2
_BINS = 2 * EXPONENTS + 3
_SMALL = 1 << 14
"""Elements up to which a tensor is pooled: there a count of its own (60 us) costs more than its share."""
_POOL_LIMIT = 1 << 22
"""Elements at which a pool is counted, to bound its memory (8 MiB)."""
_CHUNK = 1 << 20
"""Patterns counted at a time: 2 MiB of int16."""
_PIECE = 1 << 17
"""Elements turned into patterns at a time: 1 MiB of scratch, which stays in a core's own cache."""
_PIECE_ON_DEVICE = 1 << 26
"""Elements counted at a time on a GPU: what bounds the scratch (256 MiB), where no fused kernel is."""


@dataclass(frozen=True)
class Pattern:
    """How 15 bits of a number name its bin."""

    exponent_bits: int
    complete: bool
    """The bits tell an exact power of two from its neighbours (an FP32 number's upper half does not)."""
    sticky: bool = False
    """The lowest bit says whether any bit below the ones kept is set, which makes FP32's complete."""

    @property
    def mantissa_bits(self) -> int:
        """Of the 15 bits, those below the exponent."""
        return 15 - self.exponent_bits

    def of(self, flat: Tensor, out: Tensor, scratch: Tensor) -> None:
        """Writes the patterns of a contiguous 1-d tensor to ``out``, int16 or int32 of the same length.

        ``scratch``: int32, twice that long; without ``sticky`` as long, and it may be ``out``. On a CPU both
        are used again and again, so that they stay in cache and no page of memory is asked for: that alone
        made it two to three times faster.
        """
        n = flat.numel()
        if flat.dtype != torch.float32:
            torch.bitwise_and(flat.view(torch.int16), 0x7FFF, out=out)
            return
        bits, first = flat.view(torch.int32), scratch[:n]
        if not self.sticky:
            torch.bitwise_right_shift(bits, 16, out=first)
            torch.bitwise_and(first, 0x7FFF, out=out)
            return
        # 2 * (bits >> 17) + (any of the lower 17 bits set), as the sum of the quotient rounded down and up:
        # a third cheaper than comparing with zero.
        second = scratch[n : 2 * n]
        torch.bitwise_and(bits, 0x7FFFFFFF, out=first)
        torch.bitwise_right_shift(first, 17, out=second)
        first.neg_().bitwise_right_shift_(17)  # rounds up, negated; adding first would overflow on a NaN
        torch.sub(second, first, out=out)

    def bins_of_smallest(self) -> Tensor:
        """The bins of the patterns with exponent field 0 (zero and the subnormals), in order."""
        bias = 2 ** (self.exponent_bits - 1) - 1
        # A subnormal's exponent is that of its leading mantissa bit; frexp gives it exactly.
        fraction, exponent = torch.frexp(torch.arange(1 << self.mantissa_bits).double())
        bins: Tensor = exponent.long() - bias - self.mantissa_bits - LOWEST
        if self.complete:
            bins[fraction == 0.5] += POWERS
        bins[0] = ZERO
        return bins

    def table(self, counts: Tensor) -> Tensor:
        """Counts by bin [tensors, bins] from what ``summary`` left of each tensor [tensors, parts]."""
        fields = 1 << self.exponent_bits
        whole, even, smallest = counts.split((fields, fields, 1 << self.mantissa_bits), dim=1)
        table = counts.new_zeros(len(counts), _BINS)
        table.index_add_(1, self.bins_of_smallest().to(counts.device), smallest)
        first = 1 - (2 ** (self.exponent_bits - 1) - 1) - LOWEST
        normal = slice(first, first + fields - 2)
        if self.complete:
            table[:, POWERS + normal.start : POWERS + normal.stop] += even[:, 1:-1]
            table[:, normal] += whole[:, 1:-1] - even[:, 1:-1]
        else:
            table[:, normal] += whole[:, 1:-1]
        table[:, INF] = even[:, -1]
        table[:, NAN] = whole[:, -1] - even[:, -1]
        return table

    def summary(self, patterns: Tensor) -> Tensor:
        """Of pattern counts [..., 32768] what the bins need: per exponent, of mantissa 0, of exponent 0."""
        grid = patterns.unflatten(-1, (1 << self.exponent_bits, 1 << self.mantissa_bits))
        summary: Tensor = torch.cat((grid.sum(-1), grid[..., 0], grid[..., 0, :]), -1)
        return summary


HALF, BRAIN = Pattern(5, True), Pattern(8, True)
SINGLE, SINGLE_STICKY = Pattern(8, False), Pattern(8, True, sticky=True)

_Kind = tuple[torch.device, Pattern]


class ExponentCounter:
    """Counts of many tensors by exponent. ``add`` never waits for the device; ``read`` does."""

    def __init__(self) -> None:
        self._large: dict[_Kind, list[tuple[int, Tensor]]] = {}
        self._pools: dict[_Kind, list[tuple[int, Tensor]]] = {}
        self._pooled: dict[_Kind, int] = {}

    def add(self, row: int, x: Tensor, ties: bool) -> None:
        """Counts a tensor with at least one element under a number of the caller's.

        With ``ties``, exact powers of two among FP32 values are told apart, for half as much work again.
        """
        if x.dtype not in (torch.float16, torch.bfloat16, torch.float32):
            # float64 and the 8-bit formats: rare, and small enough to go through FP32's exponents.
            x = _within_float32(x)
        flat = in_storage_order(x.detach())
        if x.dtype == torch.float32:
            pattern = SINGLE_STICKY if ties else SINGLE
        else:
            pattern = HALF if x.dtype == torch.float16 else BRAIN
        kind = (x.device, pattern)
        if not on_host(x):
            counted = pattern.summary(_count_on_device(flat, pattern))
            self._large.setdefault(kind, []).append((row, counted))
            return
        if flat.numel() > _SMALL:
            counted = pattern.summary(_count_patterns(flat, pattern))
            self._large.setdefault(kind, []).append((row, counted))
            return
        patterns = torch.empty(flat.numel(), dtype=torch.int16, device=x.device)
        pattern.of(flat, patterns, _scratch(x.device).integers)
        self._pools.setdefault(kind, []).append((row, patterns))
        self._pooled[kind] = self._pooled.get(kind, 0) + flat.numel()
        if self._pooled[kind] >= _POOL_LIMIT:
            self._drain(kind)

    def _drain(self, kind: _Kind) -> None:
        """Counts a pool in one go: each tensor's patterns, shifted to a range of their own."""
        pool = self._pools.pop(kind, [])
        self._pooled[kind] = 0
        device, pattern = kind
        for start in range(0, len(pool), _TOGETHER):
            part = pool[start : start + _TOGETHER]
            sizes = torch.tensor([patterns.numel() for _, patterns in part], device=device)
            owner = torch.repeat_interleave(
                torch.arange(len(part), device=device, dtype=torch.int32),
                sizes,
                output_size=sum(p.numel() for _, p in part),
            )
            keys = torch.cat([patterns for _, patterns in part]) + owner * _PATTERNS
            counts = torch.bincount(keys, minlength=len(part) * _PATTERNS).view(len(part), _PATTERNS)
            self._large.setdefault(kind, []).extend(
                zip((row for row, _ in part), pattern.summary(counts), strict=True)
            )

    def read(self) -> dict[int, list[tuple[int, int]]]:
        """Row -> [(bin, elements)] for the bins that have any. One transfer per device and kind of number."""
        for kind in list(self._pools):
            self._drain(kind)
        found: dict[int, list[tuple[int, int]]] = {}
        for (_, pattern), counted in self._large.items():
            rows = [row for row, _ in counted]
            table = pattern.table(torch.stack([summary for _, summary in counted])).cpu()
            found.update({row: [] for row in rows})
            where = torch.nonzero(table)
            elements = table[where[:, 0], where[:, 1]]
            for (i, bin_), n in zip(where.tolist(), elements.tolist(), strict=True):
                found[rows[i]].append((bin_, n))
        return found


_TOGETHER = 64
"""Pooled tensors counted in one go: 64 ranges of 32768 counters are 16 MiB."""


def _within_float32(x: Tensor) -> Tensor:
    """x in float32; what is finite and not zero stays so, at the last exponent where it lies outside."""
    if x.dtype != torch.float64:
        return x.float()
    limits = torch.finfo(torch.float32)
    near = torch.where(torch.isinf(x), x, x.clamp(limits.min, limits.max))
    small = (near != 0) & (near.abs() < limits.tiny)
    return near.masked_fill(small, limits.tiny).float()  # ``where`` would bring the number to the device


def in_storage_order(x: Tensor) -> Tensor:
    """The elements [n], contiguous, in whatever order they lie in memory: copied only if there are gaps
    between them, or some are named twice."""
    if x.is_contiguous():
        flat = x.view(-1)
        # One element, expanded, is contiguous by name only.
        return flat if flat.stride(0) == 1 else flat.as_strided((1,), (1,))
    dense = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size != 1 and stride != dense:
            return x.contiguous().view(-1)
        dense *= size
    return x.as_strided((dense,), (1,))


def on_host(x: Tensor) -> bool:
    return x.device.type == "cpu"


def _count_on_device(flat: Tensor, pattern: Pattern) -> Tensor:
    """The same as ``_count_patterns`` in a few kernels, whatever the size. (Not run on a GPU yet.)"""
    total = None
    for piece in flat.split(_PIECE_ON_DEVICE):
        keys = torch.empty(piece.numel(), dtype=torch.int32, device=flat.device)
        pattern.of(piece, keys, keys.new_empty(2 * len(keys)) if pattern.sticky else keys)
        # ``bincount`` would read its largest key back to the host; adding ones does not.
        ones = torch.ones((), dtype=torch.int64, device=flat.device).expand(keys.numel())
        counts = torch.zeros(_PATTERNS, dtype=torch.int64, device=flat.device).index_add_(0, keys, ones)
        total = counts if total is None else total + counts
    assert total is not None  # no tensor without elements comes here
    return total


def _count_patterns(flat: Tensor, pattern: Pattern) -> Tensor:
    """How often each 15-bit pattern occurs in a contiguous 1-d tensor; int64 [32768]."""

    def count(chunk: Tensor) -> Tensor:
        scratch = _scratch(chunk.device)
        patterns = scratch.patterns[: chunk.numel()]
        for piece, out in zip(chunk.split(_PIECE), patterns.split(_PIECE), strict=True):
            pattern.of(piece, out, scratch.integers)
        return torch.bincount(patterns, minlength=_PATTERNS)

    counts = [count(chunk) for chunk in flat.split(_CHUNK)]
    return counts[0] if len(counts) == 1 else torch.stack(counts).sum(0)


@dataclass(frozen=True)
class _Buffers:
    """Memory to work in."""

    patterns: Tensor
    integers: Tensor


@functools.cache
def _scratch(device: torch.device) -> _Buffers:
    return _Buffers(
        torch.empty(_CHUNK, dtype=torch.int16, device=device),
        torch.empty(2 * _PIECE, dtype=torch.int32, device=device),
    )

"""How many elements of a tensor lie at each binary exponent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ampdoctor.facts.floats import FloatFormat


@dataclass(frozen=True)
class ExponentHistogram:
    """Counts by exponent e, where 2^e <= |x| < 2^(e+1); zeros, infinities and NaNs are kept apart."""

    counts: Mapping[int, int] = field(default_factory=dict)
    """{exponent: elements}; exponents without elements are absent."""
    zeros: int = 0
    infs: int = 0
    nans: int = 0
    powers: Mapping[int, int] = field(default_factory=dict)
    """{exponent: elements that are exactly 2^exponent}, part of ``counts``. They decide ties: FP16 flushes
    2^-25 itself and keeps all that is larger. Empty where they were not told apart."""

    def __add__(self, other: ExponentHistogram) -> ExponentHistogram:
        """The histogram of both tensors together."""
        return ExponentHistogram(
            _sum(self.counts, other.counts),
            self.zeros + other.zeros,
            self.infs + other.infs,
            self.nans + other.nans,
            _sum(self.powers, other.powers),
        )

    def shift(self, bits: int) -> ExponentHistogram:
        """The histogram of the same values times 2^bits, before any rounding."""
        return ExponentHistogram(
            {e + bits: n for e, n in self.counts.items()},
            self.zeros,
            self.infs,
            self.nans,
            {e + bits: n for e, n in self.powers.items()},
        )

    @property
    def nonzero(self) -> int:
        """Finite elements that are not zero."""
        return sum(self.counts.values())

    @property
    def total(self) -> int:
        """All elements."""
        return self.nonzero + self.zeros + self.infs + self.nans

    def flushed(self, fmt: FloatFormat) -> int:
        """Nonzero elements that round to zero: those below ``flush_at``, and those exactly there."""
        low = exponent_of(fmt.flush_at)
        return sum(n for e, n in self.counts.items() if e < low) + self.powers.get(low, 0)

    def subnormal(self, fmt: FloatFormat) -> int:
        """Nonzero elements kept with fewer bits: above ``flush_at``, below ``min_normal``."""
        low, high = exponent_of(fmt.flush_at), exponent_of(fmt.min_normal)
        return sum(n for e, n in self.counts.items() if low <= e < high) - self.powers.get(low, 0)

    def overflowed(self, fmt: FloatFormat) -> int:
        """Finite elements of 2^(max_exponent + 1) and above.

        Those between ``overflow_at`` and that power round past the range as well, and share their exponent
        with values that do not: ask the tensor's largest magnitude about them.
        """
        return sum(n for e, n in self.counts.items() if e > fmt.max_exponent)

    def rounded_to(self, fmt: FloatFormat) -> ExponentHistogram:
        """The histogram after rounding to ``fmt``: what is below its range is zero, what is above is inf.

        By whole exponents: a value within half a step of the next power of two stays in its own bin.
        """
        low = exponent_of(fmt.flush_at)
        kept = {e: n for e, n in self.counts.items() if low <= e <= fmt.max_exponent}
        flushed_ties = self.powers.get(low, 0)
        if flushed_ties:
            kept[low] -= flushed_ties
        return ExponentHistogram(
            kept, self.zeros + self.flushed(fmt), self.infs + self.overflowed(fmt), self.nans
        )


def exponent_of(magnitude: float) -> int:
    """e with 2^e <= magnitude < 2^(e+1), for a finite magnitude above zero."""
    return math.frexp(magnitude)[1] - 1


def _sum(a: Mapping[int, int], b: Mapping[int, int]) -> dict[int, int]:
    total = dict(a)
    for exponent, n in b.items():
        total[exponent] = total.get(exponent, 0) + n
    return total

"""How many elements of a tensor lie at each binary exponent."""

from __future__ import annotations

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

    def __add__(self, other: ExponentHistogram) -> ExponentHistogram:
        """The histogram of both tensors together."""
        counts = dict(self.counts)
        for exponent, n in other.counts.items():
            counts[exponent] = counts.get(exponent, 0) + n
        return ExponentHistogram(
            counts, self.zeros + other.zeros, self.infs + other.infs, self.nans + other.nans
        )

    def shift(self, bits: int) -> ExponentHistogram:
        """The histogram of the same values times 2^bits, before any rounding."""
        return ExponentHistogram(
            {e + bits: n for e, n in self.counts.items()}, self.zeros, self.infs, self.nans
        )

    @property
    def nonzero(self) -> int:
        """Finite elements that are not zero."""
        return sum(self.counts.values())

    @property
    def total(self) -> int:
        """All elements."""
        return self.nonzero + self.zeros + self.infs + self.nans

    def subnormal(self, fmt: FloatFormat) -> int:
        """Elements at exponents that the format keeps with fewer bits: min_subnormal/2 .. min_normal."""
        low, high = _exponent(fmt.flush_at), _exponent(fmt.min_normal)
        return sum(n for e, n in self.counts.items() if low <= e < high)

    def flushed(self, fmt: FloatFormat) -> int:
        """Nonzero elements below the exponent of ``flush_at``: all of them round to zero."""
        low = _exponent(fmt.flush_at)
        return sum(n for e, n in self.counts.items() if e < low)

    def rounded_to(self, fmt: FloatFormat) -> ExponentHistogram:
        """The histogram after rounding to ``fmt``: what is below its range is zero, what is above is inf.

        By whole exponents: a value within half a step of the next power of two stays in its own bin.
        """
        low = _exponent(fmt.flush_at)
        kept = {e: n for e, n in self.counts.items() if low <= e <= fmt.max_exponent}
        above = sum(n for e, n in self.counts.items() if e > fmt.max_exponent)
        return ExponentHistogram(
            kept, self.zeros + self.flushed(fmt), self.infs + above, self.nans
        )


def _exponent(power_of_two: float) -> int:
    exponent = 0
    while power_of_two < 1.0:
        power_of_two *= 2.0
        exponent -= 1
    return exponent

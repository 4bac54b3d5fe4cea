"""The numbers kept of one tensor."""

from __future__ import annotations

from dataclasses import dataclass

from ampdoctor.facts.histogram import ExponentHistogram


@dataclass(frozen=True)
class TensorStats:
    """Range and counts of one floating-point tensor, as it was after rounding to its own dtype."""

    dtype: str
    """``float16``, ``float32`` ..."""
    shape: tuple[int, ...]
    min: float | None
    """Smallest element; None for an empty tensor, NaN if any element is NaN."""
    max: float | None
    absmax: float | None
    """Largest finite magnitude; None if no element is finite."""
    nan: int
    inf: int
    """Elements that are +inf or -inf."""
    zeros: int | None
    """None for a wide tensor of the candidate: as of the histogram, its twin in the reference has it."""
    flushed: int | None
    """Elements this op rounded from nonzero to zero; None where the value before was not seen."""
    overflowed: int | None
    """Elements this op rounded from finite to inf; None where the value before was not seen, or may have been
    infinite itself."""
    histogram: ExponentHistogram
    """In backward of the values before rounding, where those were seen; else of the elements. Empty for a
    wide tensor of the candidate: nothing is rounded there, and its twin in the reference has one."""
    absmax_before_rounding: float | None = None
    """Largest magnitude before rounding; None where that was not seen, or was not finite."""

    @property
    def numel(self) -> int:
        """Elements in the tensor."""
        n = 1
        for size in self.shape:
            n *= size
        return n

    @property
    def nonzero(self) -> int:
        """Elements that are not zero, NaN and inf among them; all, where zeros were not counted."""
        return self.numel - (self.zeros or 0)

    @property
    def is_finite(self) -> bool:
        """No NaN and no infinity among the elements."""
        return self.nan == 0 and self.inf == 0

"""Floating-point formats as numbers: where each one overflows, flushes and loses bits."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class FloatFormat:
    """A binary floating-point format with subnormals and round-to-nearest-even.

    ``has_infinity`` is False for formats that reuse the top exponent for numbers (float8_e4m3fn): there the
    largest mantissa of the top exponent is NaN, and a value past the range becomes NaN.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    has_infinity: bool = True

    @property
    def bits(self) -> int:
        """All of them, with the sign."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self) -> int:
        """The exponent's offset: 15 in FP16."""
        return int(2 ** (self.exponent_bits - 1)) - 1

    @property
    def max_exponent(self) -> int:
        """The exponent of the largest value: 15 in FP16."""
        return self.bias if self.has_infinity else self.bias + 1

    @property
    def max(self) -> float:
        """The largest finite value: 65504 in FP16."""
        steps_below_two = 1 if self.has_infinity else 2
        return (2.0 - steps_below_two * 2.0**-self.mantissa_bits) * 2.0**self.max_exponent

    @property
    def overflow_at(self) -> float:
        """The smallest magnitude that rounds past ``max``: 65520 in FP16 (half a step above 65504)."""
        halfway = self.max + 2.0 ** (self.max_exponent - self.mantissa_bits - 1)
        # A tie goes to the even mantissa: past the range from all ones, to 448 from its 110.
        return halfway if self.has_infinity else math.nextafter(halfway, math.inf)

    @property
    def min_normal(self) -> float:
        """The smallest value that keeps every mantissa bit: 2^-14 in FP16."""
        return 2.0 ** (1 - self.bias)

    @property
    def min_subnormal(self) -> float:
        """The smallest value above zero: 2^-24 in FP16."""
        return 2.0 ** (1 - self.bias - self.mantissa_bits)

    @property
    def flush_at(self) -> float:
        """The largest magnitude that rounds to zero: 2^-25 in FP16 (a tie, and ties go to even)."""
        return self.min_subnormal / 2

    @property
    def epsilon(self) -> float:
        """The distance from 1 to the next value: 2^-10 in FP16."""
        return 2.0**-self.mantissa_bits


FLOAT16 = FloatFormat("float16", 5, 10)
BFLOAT16 = FloatFormat("bfloat16", 8, 7)
FLOAT32 = FloatFormat("float32", 8, 23)
FLOAT64 = FloatFormat("float64", 11, 52)
FLOAT8_E4M3FN = FloatFormat("float8_e4m3fn", 4, 3, has_infinity=False)
FLOAT8_E5M2 = FloatFormat("float8_e5m2", 5, 2)

FLOAT_FORMATS: dict[str, FloatFormat] = {
    f.name: f for f in (FLOAT16, BFLOAT16, FLOAT32, FLOAT64, FLOAT8_E4M3FN, FLOAT8_E5M2)
}

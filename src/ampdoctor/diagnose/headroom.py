"""Headroom: how many times a tensor can double before its format ends."""

from __future__ import annotations

import math

from ampdoctor.facts.floats import FLOAT_FORMATS

LOW_PRECISION = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
"""Formats whose range is in question; FP32's never is."""


def headroom_bits(absmax: float | None, dtype: str) -> float | None:
    """log2(largest value / absmax); None for a wide format, and where nothing is finite or nonzero."""
    if dtype not in LOW_PRECISION or not absmax or not math.isfinite(absmax):
        return None
    return math.log2(FLOAT_FORMATS[dtype].max / absmax)

"""The Triton kernel that reads a tensor once and leaves its range and its counts by exponent.

Imported by ``fused`` where Triton is, never otherwise. It works on bits: integers alone, so that a GPU, a
compiler's fast arithmetic and Triton's interpreter agree to the last bit. (Compiled here for three
architectures, run by the interpreter; not run on a GPU yet.)
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["row"])
def tally(
    bits,
    n,
    counts,
    ranges,
    row,
    WIDTH: tl.constexpr,
    MANTISSA: tl.constexpr,
    FIELDS: tl.constexpr,
    POWERS: tl.constexpr,
    COUNT: tl.constexpr,
    BINS: tl.constexpr,
    SIZE: tl.constexpr,
):
    """Adds the elements behind ``bits`` [n] (integers of WIDTH bits) to ``counts[row]`` [BINS] and
    ``ranges[row]`` [4]: the order of the largest, of the smallest (negated), and whether there is a NaN.

    A number's *order* is its magnitude's bits with its sign: as integers they compare as the numbers do.
    """
    EXPONENTS: tl.constexpr = FIELDS - 2 + MANTISSA
    ZERO: tl.constexpr = EXPONENTS * (2 if POWERS else 1)
    first = tl.program_id(0).to(tl.int64)
    histogram = tl.zeros([BINS], dtype=tl.int32)
    if WIDTH == 64:
        largest = tl.full([SIZE], -(2**63) + 1, tl.int64)
    else:
        largest = tl.full([SIZE], -(2**31) + 1, tl.int32)
    smallest = largest
    nans = tl.zeros([SIZE], dtype=tl.int32)
    for block in range(first, tl.cdiv(n, SIZE), tl.num_programs(0)):
        at = tl.arange(0, SIZE) + block * SIZE
        here = at < n
        signed = tl.load(bits + at, mask=here, other=0)
        if WIDTH == 64:
            magnitude = signed & 0x7FFFFFFFFFFFFFFF
            nan = magnitude > 0x7FF0000000000000
        elif WIDTH == 32:
            magnitude = signed & 0x7FFFFFFF
            nan = magnitude > 0x7F800000
        else:
            magnitude = signed.to(tl.int32) & 0x7FFF
            nan = magnitude > ((FIELDS - 1) << MANTISSA)
        order = tl.where(signed < 0, -magnitude, magnitude)
        counts_here = here & (nan == 0)
        largest = tl.where(counts_here & (order > largest), order, largest)
        smallest = tl.where(counts_here & (-order > smallest), -order, smallest)
        nans = nans | (here & nan).to(tl.int32)
        if COUNT:
            if WIDTH == 64:
                # As a cast to float32 rounds, kept within its normal numbers; then its upper half.
                rounded = (magnitude + (0x0FFFFFFF + ((magnitude >> 29) & 1))) >> 29
                rounded = rounded - ((1023 - 127) << 23)
                rounded = tl.where(rounded < 0x00800000, 0x00800000, rounded)
                rounded = tl.where(rounded > 0x7F7FFFFF, 0x7F7FFFFF, rounded)
                rounded = tl.where(magnitude == 0, 0, rounded)
                rounded = tl.where(magnitude == 0x7FF0000000000000, 0x7F800000, rounded)
                pattern = (tl.where(nan, 0x7FC00000, rounded) >> 16).to(tl.int32)
            elif WIDTH == 32:
                pattern = magnitude >> 16
            else:
                pattern = magnitude
            field = pattern >> MANTISSA
            mantissa = pattern & ((1 << MANTISSA) - 1)
            # A subnormal's exponent is that of its leading bit, which a conversion to float32 finds.
            leading = (mantissa.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
            bin_ = tl.where(field > 0, field - 1 + MANTISSA, leading)
            if POWERS:
                power = tl.where(field > 0, mantissa == 0, (mantissa & (mantissa - 1)) == 0)
                bin_ += EXPONENTS * power.to(tl.int32)
            bin_ = tl.where(pattern == 0, ZERO, bin_)
            bin_ = tl.where(field == FIELDS - 1, tl.where(mantissa == 0, ZERO + 1, ZERO + 2), bin_)
            histogram += tl.histogram(tl.where(here, bin_, BINS - 1), BINS)
    ranges += row.to(tl.int64) * 4
    tl.atomic_max(ranges, tl.max(largest, axis=0).to(tl.int64))
    tl.atomic_max(ranges + 1, tl.max(smallest, axis=0).to(tl.int64))
    tl.atomic_max(ranges + 2, tl.max(nans, axis=0).to(tl.int64))
    if COUNT:
        bins = tl.arange(0, BINS)
        seen = (bins < ZERO + 3) & (histogram > 0)
        tl.atomic_add(counts + row.to(tl.int64) * BINS + bins, histogram.to(tl.int64), mask=seen)

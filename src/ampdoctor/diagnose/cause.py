"""Why a value was born bad: it left the range, its inputs had been flushed, or FP32 has it too."""

from __future__ import annotations

from typing import Final

from ampdoctor.facts.floats import FLOAT_FORMATS
from ampdoctor.facts.trace import Birth
from ampdoctor.facts.words import Cause

RANGE: Final = "range"
"""Finite in exact arithmetic; the format has no such number."""
FLUSH: Final = "flush"
"""Undefined on these inputs, but only because rounding had made one of them 0 (or 1)."""
CANCELLATION: Final = "cancellation"
"""Undefined on these inputs: a difference of nearly equal numbers came out negative by rounding alone."""
GENUINE: Final = "genuine"
"""Undefined in FP32 as well."""

_UNDEFINED_BELOW_ZERO = frozenset(
    f"aten::{op}" for op in ("sqrt", "rsqrt", "log", "log2", "log10", "pow", "pow_", "sqrt_", "log_")
)


def cause_of(birth: Birth, reference_fails: bool) -> Cause:
    """``range``, ``flush``, ``cancellation`` or ``genuine``, from the float64 rerun and the same place in the
    FP32 pass; ``reference_fails``: that pass ends with a loss or a gradient that is not finite."""
    if birth.reference == "same":
        # The user's own .half() stays in the FP32 pass: what leaves its range is no matter of the formula.
        in_half = birth.reference_dtype in ("float16", "bfloat16")
        return RANGE if in_half and birth.rerun == "finite" else GENUINE
    if birth.rerun == "finite":
        return RANGE
    if is_of_a_negative(birth):
        return GENUINE if reference_fails else CANCELLATION
    if birth.zero_origin is not None:
        return FLUSH
    if birth.rerun == "not-run":
        return _without_rerun(birth)
    # The op is undefined on these very inputs. Where the FP32 pass ran it without harm, its inputs were
    # others before rounding; where FP32 has no such op, nothing speaks against the op itself.
    return FLUSH if birth.reference == "finite" else GENUINE


def is_of_a_negative(birth: Birth) -> bool:
    """True for the root or logarithm of a negative number: no zero that rounding made explains it."""
    below = birth.argument is not None and birth.argument < 0
    return below and birth.site is not None and birth.site.op in _UNDEFINED_BELOW_ZERO


def _without_rerun(birth: Birth) -> Cause:
    """The same judgement from the FP32 value and the inputs alone."""
    fmt = FLOAT_FORMATS.get(birth.dtype)
    value = birth.reference_value
    if fmt and value is not None and abs(value) >= fmt.overflow_at:
        return RANGE
    if any(operand.zeros for operand in birth.operands):
        return FLUSH if birth.reference == "finite" else GENUINE
    return RANGE if birth.value == "inf" else GENUINE

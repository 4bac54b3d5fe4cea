"""Why a value was born bad: it left the range, its inputs had been flushed, or FP32 has it too."""

from __future__ import annotations

from typing import Final

from ampdoctor.diagnose.domain import leaves_domain
from ampdoctor.facts.floats import FLOAT32, FLOAT_FORMATS
from ampdoctor.facts.trace import Birth
from ampdoctor.facts.words import Cause

RANGE: Final = "range"
"""Finite in exact arithmetic; the format has no such number."""
FLUSH: Final = "flush"
"""Undefined on these inputs, but only because rounding had made one of them 0 (or 1)."""
CANCELLATION: Final = "cancellation"
"""Undefined on these inputs: a difference of nearly equal numbers left the op's domain by rounding alone."""
GENUINE: Final = "genuine"
"""Undefined in FP32 as well."""


def cause_of(birth: Birth, reference_fails: bool) -> Cause:
    """``range``, ``flush``, ``cancellation`` or ``genuine``, from the float64 rerun and the same place in the
    FP32 pass; ``reference_fails``: that pass ends with a loss or a gradient that is not finite."""
    if birth.reference == "same":
        # The user's own .half() stays in the FP32 pass: what leaves its range is no matter of the formula.
        return RANGE if stays_half(birth) and birth.rerun == "finite" else GENUINE
    if birth.rerun == "finite":
        return GENUINE if birth.reference == "absent" and _past_float32(birth) else RANGE
    if leaves_domain(birth):
        return GENUINE if reference_fails else CANCELLATION
    if birth.zero_origin is not None:
        return FLUSH
    if birth.rerun == "not-run":
        return _without_rerun(birth)
    # The op is undefined on these very inputs. Where the FP32 pass ran it without harm, its inputs were
    # others before rounding; where FP32 has no such op, nothing speaks against the op itself.
    return FLUSH if birth.reference == "finite" else GENUINE


def stays_half(birth: Birth) -> bool:
    """True where this op runs in 16 bits in the FP32 pass too: a cast in the user's code makes it so."""
    return birth.reference_dtype in ("float16", "bfloat16")


def _past_float32(birth: Birth) -> bool:
    return birth.exact_value is not None and abs(birth.exact_value) >= FLOAT32.overflow_at


def _without_rerun(birth: Birth) -> Cause:
    """The same judgement from the FP32 value and the inputs alone."""
    fmt = FLOAT_FORMATS.get(birth.dtype)
    value = birth.reference_value
    if fmt and value is not None and abs(value) >= fmt.overflow_at:
        return RANGE
    if any(operand.zeros for operand in birth.operands):
        return FLUSH if birth.reference == "finite" else GENUINE
    return RANGE if birth.value == "inf" else GENUINE

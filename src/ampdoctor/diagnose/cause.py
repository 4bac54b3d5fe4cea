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
GENUINE: Final = "genuine"
"""Undefined in FP32 as well."""


def cause_of(birth: Birth) -> Cause:
    """``range``, ``flush`` or ``genuine``, from the float64 rerun and the same place in the FP32 pass."""
    if birth.reference == "same":
        return GENUINE
    if birth.rerun == "finite":
        return RANGE
    if birth.zero_origin is not None:
        return FLUSH
    if birth.rerun == "not-run":
        return _without_rerun(birth)
    # The op is undefined on these very inputs. Where the FP32 pass ran it without harm, its inputs were
    # others before rounding; where FP32 has no such op, nothing speaks against the op itself.
    return FLUSH if birth.reference == "finite" else GENUINE


def _without_rerun(birth: Birth) -> Cause:
    """The same judgement from the FP32 value and the inputs alone."""
    fmt = FLOAT_FORMATS.get(birth.dtype)
    value = birth.reference_value
    if fmt and value is not None and abs(value) >= fmt.overflow_at:
        return RANGE
    if any(operand.zeros for operand in birth.operands):
        return FLUSH if birth.reference == "finite" else GENUINE
    return RANGE if birth.value == "inf" else GENUINE

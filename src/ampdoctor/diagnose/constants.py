"""Births that a number written in the code explains: a mask value, a vanished eps, a difference from one."""

from __future__ import annotations

import re

from ampdoctor.facts.floats import FLOAT_FORMATS, FloatFormat
from ampdoctor.facts.trace import Birth

_CASTS = ("aten::_to_copy", "aten::copy_", "aten::lift_fresh")
_MAKES_CONSTANTS = ("aten::lift_fresh", "aten::full", "aten::scalar_tensor", "aten::detach", "aten::clone")
_ADDS = ("aten::add", "aten::add_", "aten::sub", "aten::sub_", "aten::baddbmm")
_NEXT_TO_ONE = ("aten::rsub", "aten::sub", "aten::log1p", "aten::sigmoid", "aten::clamp", "aten::clamp_max")
_EPS_OPS = ("aten::add", "aten::add_", "aten::clamp_min", "aten::clamp", "aten::maximum", "aten::div")
_NUMBER = re.compile(r"(?<![\w.])(\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?)(?![\w.])")


def is_constant_fault(birth: Birth) -> bool:
    """True where the overflow is a constant's: a lone number cast, or a mask at the format's lowest value."""
    return _is_lone_constant(birth) or is_finfo_mask(birth)


def _is_lone_constant(birth: Birth) -> bool:
    op = birth.site.op if birth.site else ""
    lone = all(size == 1 for size in birth.shape)
    made_by_code = all(o.made_by is None or o.made_by.op in _MAKES_CONSTANTS for o in birth.operands)
    return op in _CASTS and lone and made_by_code


def is_finfo_mask(birth: Birth) -> bool:
    """True where a sum overflows because one operand holds exactly the format's largest magnitude."""
    fmt = FLOAT_FORMATS.get(birth.dtype)
    op = birth.site.op if birth.site else ""
    return fmt is not None and op in _ADDS and any(o.absmax == fmt.max for o in birth.operands)


def is_vanished_eps(birth: Birth, fmt: FloatFormat) -> bool:
    """True where the zero came out of an addition whose eps the format rounds to zero."""
    root = birth.zero_origin
    if root is None:
        return False
    if (
        root.site.op in _EPS_OPS
        and root.reference_absmax is not None
        and root.reference_absmax <= fmt.flush_at
    ):
        return True
    text = root.source.text if root.source else ""
    return any(0 < float(n) <= fmt.flush_at for n in _NUMBER.findall(text))


def rounded_next_to_one(birth: Birth) -> bool:
    """True where the zero is a difference from 1 that rounding closed: 1 - p, log1p(-p), 1 - cos^2."""
    own = birth.site.op if birth.site else ""
    root = birth.zero_origin.site.op if birth.zero_origin else ""
    return own == "aten::log1p" or root in _NEXT_TO_ONE

"""Births that a number written in the code explains: a mask value, a vanished eps, a difference from one."""

from __future__ import annotations

from ampdoctor.diagnose.domain import at_an_edge_of_one
from ampdoctor.facts.floats import FLOAT_FORMATS, FloatFormat
from ampdoctor.facts.trace import Birth, ZeroOrigin

_CASTS = ("aten::_to_copy", "aten::copy_", "aten::lift_fresh")
_MAKES_CONSTANTS = ("aten::lift_fresh", "aten::full", "aten::scalar_tensor", "aten::detach", "aten::clone")
_ADDS = ("aten::add", "aten::add_", "aten::sub", "aten::sub_", "aten::baddbmm")
_EPS_OPS = ("aten::add", "aten::add_", "aten::clamp_min", "aten::clamp", "aten::maximum")
_DIFFERENCES = ("aten::rsub", "aten::sub")


def is_constant_fault(birth: Birth) -> bool:
    """True where the overflow is a constant's: a lone number cast, or a mask at the format's lowest value."""
    return _is_lone_constant(birth) or is_finfo_mask(birth)


def _is_lone_constant(birth: Birth) -> bool:
    op = birth.site.op if birth.site else ""
    lone = all(size == 1 for size in birth.shape)
    made_by_code = all(o.made_by is None or o.made_by.op in _MAKES_CONSTANTS for o in birth.operands)
    return op in _CASTS and lone and made_by_code


def is_finfo_mask(birth: Birth) -> bool:
    """True where a sum falls below the format because one operand holds exactly its lowest value."""
    fmt = FLOAT_FORMATS.get(birth.dtype)
    op = birth.site.op if birth.site else ""
    below = birth.exact_value is not None and birth.exact_value < 0
    return fmt is not None and op in _ADDS and below and any(o.absmax == fmt.max for o in birth.operands)


def vanished_eps(birth: Birth, fmt: FloatFormat) -> ZeroOrigin | None:
    """The op whose eps the format rounds to zero, nearest to the birth; None where no eps stood guard."""
    if at_an_edge_of_one(birth):
        return None
    chain = birth.zero_chain or ((birth.zero_origin,) if birth.zero_origin else ())
    for zero in chain:
        if zero.site.op in _EPS_OPS and zero.constant is not None and zero.constant <= fmt.flush_at:
            return zero
    return None


def rounded_next_to_one(birth: Birth) -> bool:
    """True where the zero is a difference from 1 that rounding closed: 1 - p, log1p(-p), 1 - cos^2."""
    root = first_zero(birth)
    return at_an_edge_of_one(birth) or (root is not None and root.site.op in _DIFFERENCES)


def root_of(birth: Birth, fmt: FloatFormat) -> ZeroOrigin | None:
    """What is to blame for the zero that the op stumbled over: the eps that vanished, else where the zero was
    made. None for an op that zeros do not trouble."""
    return vanished_eps(birth, fmt) or first_zero(birth)


def first_zero(birth: Birth) -> ZeroOrigin | None:
    """Where the zero was made. (An op that is undefined at 1 does not mind zeros among its inputs.)"""
    return None if at_an_edge_of_one(birth) else birth.zero_origin

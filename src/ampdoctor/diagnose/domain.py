"""Where ops are defined: whether the argument of a birth lies outside, or at the edge."""

from __future__ import annotations

import math

from ampdoctor.facts.trace import Birth

_DOMAINS = {
    "aten::sqrt": (0.0, math.inf),
    "aten::rsqrt": (0.0, math.inf),
    "aten::log": (0.0, math.inf),
    "aten::log2": (0.0, math.inf),
    "aten::log10": (0.0, math.inf),
    "aten::log1p": (-1.0, math.inf),
    "aten::acos": (-1.0, 1.0),
    "aten::asin": (-1.0, 1.0),
    "aten::acosh": (1.0, math.inf),
    "aten::atanh": (-1.0, 1.0),
    "aten::erfinv": (-1.0, 1.0),
    "aten::logit": (0.0, 1.0),
}
"""Op -> the least and the largest argument, its edges included: some of these are infinite there."""


def domain_of(birth: Birth) -> tuple[float, float] | None:
    """The least and the largest argument of the birth's op; None for an op that is defined everywhere, or of
    which it is not known. A power with a fraction for an exponent is a root."""
    op = birth.site.op.removesuffix("_") if birth.site else ""
    if op == "aten::pow" and birth.constant is not None and not birth.constant.is_integer():
        return 0.0, math.inf
    return _DOMAINS.get(op)


def leaves_domain(birth: Birth) -> bool:
    """True where the element that the op took lies outside its domain: the root of -8,192."""
    domain, taken = domain_of(birth), birth.argument
    return domain is not None and taken is not None and not domain[0] <= taken <= domain[1]


def at_an_edge_of_one(birth: Birth) -> bool:
    """True where the op took 1 or -1, and is infinite there: atanh(1), log1p(-1)."""
    domain, taken = domain_of(birth), birth.argument
    op = birth.site.op if birth.site else ""
    if domain is None or op in ("aten::acosh", "aten::acos", "aten::asin"):
        return False
    if taken is None:
        return op == "aten::log1p"  # it is undefined nowhere else
    return taken in domain and abs(taken) == 1.0

"""The gradient that overflows first as the loss scale rises, in the words that every finding names it by."""

from __future__ import annotations

from ampdoctor.diagnose.wording import place, scale, short_op, source_place
from ampdoctor.scales.reading import ScaleReading


def limit_words(scales: ScaleReading) -> str:
    """``above 32 the backward of addmm in out (model.py:16) overflows``; '' where that is not known."""
    limit, ceiling = scales.high_limit, scales.ceiling
    if limit is None or ceiling is None:
        return ""
    op = short_op(limit.forward_op) or short_op(limit.site.op)
    line = f" ({source_place(limit.source)})" if limit.source else ""
    return f"above {scale(2.0**ceiling)} the backward of {op} in {place(limit.site.module)}{line} overflows"

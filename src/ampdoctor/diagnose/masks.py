"""Values that lie at the edge of a format on purpose: masks, and ops that only copy a constant."""

from __future__ import annotations

import math

from ampdoctor.facts.floats import FLOAT_FORMATS
from ampdoctor.facts.stats import TensorStats
from ampdoctor.facts.trace import SiteRecord

_NEARLY_MIN = 0.99
"""finfo.min plus an ordinary score: FP16 keeps it within 1 % of -65504."""
_ROOM_ABOVE = 16.0
"""...while nothing positive in the same tensor comes near the top."""
_WRITES_A_CONSTANT = (
    "aten::full",
    "aten::full_like",
    "aten::new_full",
    "aten::fill",
    "aten::fill_",
    "aten::masked_fill",
    "aten::masked_fill_",
    "aten::scalar_tensor",
    "aten::lift_fresh",
)


def is_mask(record: SiteRecord) -> bool:
    """True for a tensor whose largest magnitude is a mask value and says nothing about the activations."""
    return record.site.op in _WRITES_A_CONSTANT or _holds_lowest(record.stats)


def _holds_lowest(stats: TensorStats) -> bool:
    """Elements near the format's lowest value, in a tensor that is otherwise small."""
    fmt = FLOAT_FORMATS.get(stats.dtype)
    if fmt is None or stats.absmax is None or stats.absmax < _NEARLY_MIN * fmt.max:
        return False
    if stats.max is None or math.isnan(stats.max):
        return False
    return stats.max * _ROOM_ABOVE < fmt.max

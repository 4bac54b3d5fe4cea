"""AMP417: a moving average in low precision never moves

What it means
    A tensor kept in FP16 or BF16 is multiplied by a decay so near to 1 that
    the product rounds back to the old value, and what is added is too small
    to count: the average stays where it began.

How it is found
    An op in place on a low-precision tensor kept its values: the decay
    differs from 1 by less than half the distance to the next number (2^-11 in
    FP16, 2^-8 in BF16). The share of elements that did not change is measured
    at the first time.

What to do
    Keep the average in FP32, and cast a copy where it is used.

Example
    ema.half(); s.mul_(0.9999).add_(p.half(), alpha=0.0001)

Sources
    d8ahazard/sd_dreambooth_extension#1417; AndreasBergmeister/ram#6.
"""

from __future__ import annotations

from collections.abc import Iterable

from ampdoctor.diagnose.loop.rule import LoopRule, by_line, finding, of_kind
from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.wording import format_name, percent
from ampdoctor.facts.loop import LoopTrace

_REMEDY = "Keep moving averages in float32."


_MOST = 0.5
"""An average more than half of whose elements cannot decay is no average."""


def check(trace: LoopTrace) -> Iterable[Finding]:
    """One finding for each line whose decay was measured and changed next to nothing."""
    for group in by_line(of_kind(trace, "decay")):
        measured = next((e for e in group if e.unchanged is not None), None)
        if measured is None or (measured.unchanged or 0.0) <= _MOST:
            continue
        message = (
            f"A decay of {measured.value:g} in {format_name(measured.dtype)} leaves "
            f"{percent(measured.unchanged)} of "
            "the elements as they were."
        )
        evidence = {"decay": measured.value, "dtype": measured.dtype, "unchanged": measured.unchanged}
        yield finding(CODE, TITLE, "error", measured.source, message, _REMEDY, evidence, len(group))


CODE, TITLE = "AMP417", "a moving average in low precision never moves"
RULE = LoopRule(CODE, TITLE, "error", __doc__ or "", check)

"""AMP415: loss scale fell below 1

What it means
    The loss scale fell below 1: gradients were not finite again and again, at
    any scale, so the fault is not one of scale. Below 2.9e-39 its inverse is
    infinite in FP32: the check of finite gradients, which comes before the
    division, then lets everything through, and the weights become inf or NaN.

How it is found
    scaler.update() left a scale below 1; an error where its inverse in FP32
    is infinite.

What to do
    Stop where the scale falls below 1, and look for the fault itself: the
    report on the examined step names it.

Example
    One corrupt batch after another: 150 skipped steps take the scale from
    65,536 to 4.6e-41.

Sources
    pytorch/pytorch#99640.
"""

from __future__ import annotations

from collections.abc import Iterable

from ampdoctor.diagnose.loop.rule import LoopRule, finding, of_kind, scale_words
from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.wording import count_words
from ampdoctor.facts.loop import LoopTrace
from ampdoctor.facts.words import Severity

_REMEDY = "Stop training where the scale falls below 1, and find out what makes the gradients non-finite."


_UNPROTECTED = 1 / 3.4028234663852886e38
"""The inverse of FP32's largest number: a scale below it has an infinite inverse."""


def check(trace: LoopTrace) -> Iterable[Finding]:
    """One finding for the scaler that fell lowest."""
    updates = [e for e in of_kind(trace, "update") if e.scale_after is not None and e.scale_after < 1]
    if not updates:
        return
    lowest = min(updates, key=lambda e: e.scale_after or 0.0)
    lost = [e for e in updates if (e.scale_after or 0.0) < _UNPROTECTED]
    skipped = sum(1 for e in of_kind(trace, "scaler_step") if e.skipped)
    message = (
        f"After {count_words(skipped, 'skipped step')} the loss scale is down to "
        f"{scale_words(lowest.scale_after)}."
    )
    if lost:
        message += (
            f" From step {lost[0].step:,} on its inverse is infinite in FP32: skipping no "
            "longer protects the weights."
        )
    evidence = {"loss_scale": lowest.scale_after, "skipped": skipped, "unprotected": bool(lost)}
    severity: Severity = "error" if lost else "warning"
    yield finding(CODE, TITLE, severity, lowest.source, message, _REMEDY, evidence)


CODE, TITLE = "AMP415", "loss scale fell below 1"
RULE = LoopRule(CODE, TITLE, "warning", __doc__ or "", check)

"""AMP423: backward under autocast

What it means
    Backward runs while autocast is on. Its ops need no autocast: each runs in
    the dtype of its forward op. With it, products of parts that were kept in
    FP32 on purpose, and of autograd functions of your own, are cast to half
    precision in backward, and may overflow there or lose what FP32 would
    have kept.

How it is found
    Autocast was on when backward was called. A region that stays open across
    updates is AMP412.

What to do
    End the region before backward: only forward pass and loss belong into it.

Example
    with torch.autocast('cuda'): loss = model(x); scaler.scale(loss).backward()

Sources
    torch.autocast: 'Backward passes under autocast are not recommended'.
"""

from __future__ import annotations

from collections.abc import Iterable

from ampdoctor.diagnose.loop import stale_casts
from ampdoctor.diagnose.loop.rule import LoopRule, by_line, finding, in_steps, of_kind
from ampdoctor.diagnose.report import Finding
from ampdoctor.facts.loop import LoopTrace

_REMEDY = "Call backward outside the autocast region."


def check(trace: LoopTrace) -> Iterable[Finding]:
    """One finding for each line that runs backward under autocast."""
    if any(stale_casts.check(trace)):
        return
    for group in by_line(e for e in of_kind(trace, "backward") if e.detail == "autocast"):
        message = f"Backward runs with autocast on, {in_steps(group)}."
        yield finding(CODE, TITLE, "warning", group[0].source, message, _REMEDY, {}, len(group))


CODE, TITLE = "AMP423", "backward under autocast"
RULE = LoopRule(CODE, TITLE, "warning", __doc__ or "", check)

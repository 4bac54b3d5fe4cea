"""AMP422: divided by another scale than multiplied

What it means
    The loss was multiplied by one loss scale and its gradients are divided by
    another: they are too large or too small by the ratio of the two. The
    scale was updated before the gradients were divided, or two scalers were
    mixed up. What the update judged were the gradients of the step before.

How it is found
    At unscale_, or at the step that unscales by itself, the scale differs
    from that of the one backward whose gradients are divided.

What to do
    Backward, then unscale_ and step, then update, all with the same scaler.

Example
    scaler.scale(loss).backward(); scaler.update(); scaler.step(optimizer)

Sources
    torch.amp.GradScaler.update; the AMP recipes of PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterable

from ampdoctor.diagnose.loop.rule import LoopRule, between, by_line, finding, in_steps, of_kind, scale_words
from ampdoctor.diagnose.report import Finding
from ampdoctor.facts.loop import Event, LoopTrace

_REMEDY = "Call scaler.update() last in a step, and give unscale_ and step the scaler that scaled the loss."


def check(trace: LoopTrace) -> Iterable[Finding]:
    """One finding for each line that changes the scale between a backward and the division."""
    found: list[tuple[Event, Event, Event]] = []
    for division in of_kind(trace, "unscale"):
        start = division.accumulates_onto
        if start is None or not division.gradients.get("scaled") or trace.events[start].kind != "backward":
            continue
        first = trace.events[start]
        added = [b for b in between(trace, start, division.order, "backward") if b.accumulates_onto == start]
        if first.scale in (None, division.scale) or any(b.scale != first.scale for b in added):
            continue  # of terms at different scales AMP406 speaks
        changing = [
            u for u in between(trace, start, division.order, "update", "load") if u.scale_after != u.scale
        ]
        found.append((changing[0] if changing else division, first, division))
    for group in by_line(culprit for culprit, _, _ in found):
        _, first, division = next(f for f in found if f[0] is group[0])
        mixed = " by another scaler" if first.scaler != division.scaler else ""
        message = (
            f"The loss is multiplied by {scale_words(first.scale)} and its gradients are divided by "
            f"{scale_words(division.scale)}{mixed}, {in_steps(group)}."
        )
        evidence = {"multiplied_by": first.scale, "divided_by": division.scale}
        yield finding(CODE, TITLE, "error", group[0].source, message, _REMEDY, evidence, len(group))


CODE, TITLE = "AMP422", "divided by another scale than multiplied"
RULE = LoopRule(CODE, TITLE, "error", __doc__ or "", check)

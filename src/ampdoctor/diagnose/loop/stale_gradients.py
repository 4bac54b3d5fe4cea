"""AMP407: gradients of an earlier step are still there

What it means
    A backward adds to gradients that an earlier step has divided and used, or
    skipped. After a skipped step they hold infinities: every following step
    is skipped as well, and the scale falls without end. After a step that was
    taken, old gradients are applied again, at the wrong scale.

How it is found
    At the scaler's step, gradients are the sum of some that were divided
    before and some that were not; no zero_grad came between. Where a
    zero_grad elsewhere in the script stands under an `if`, that line is
    named.

What to do
    Call optimizer.zero_grad() in every step, whether or not it was skipped.

Example
    if scaler.get_scale() >= before: optimizer.zero_grad()

Sources
    PaddlePaddle/Paddle#67895.
"""

from __future__ import annotations

from collections.abc import Iterable

from ampdoctor.diagnose.loop.rule import LoopRule, before, between, finding, in_steps, of_kind
from ampdoctor.diagnose.report import Finding
from ampdoctor.facts.loop import Event, LoopTrace

_REMEDY = "Call optimizer.zero_grad() in every step, skipped or not."


def check(trace: LoopTrace) -> Iterable[Finding]:
    """One finding for each line that steps on gradients which an earlier step left there."""
    lines: dict[object, list[Event]] = {}
    for event in of_kind(trace, "scaler_step"):
        backward = before(trace, event, "backward")
        while backward is not None and not backward.gradients.get("unscaled"):
            if backward.step != event.step:
                backward = None
                break
            backward = before(trace, backward, "backward")
        if not event.gradients.get("mixed") or backward is None:
            continue
        last = before(trace, backward, "unscale", "scaler_step")
        if last is not None and (last.kind == "scaler_step" or last.detail == "by step"):
            lines.setdefault(event.source, []).append(event)
    for events in lines.values():
        first = events[0]
        clearing = [e for e in of_kind(trace, "zero_grad") if e.condition is not None]
        earlier = [
            e for e in of_kind(trace, "scaler_step") if e.order < first.order and e.subject == first.subject
        ]
        skipped = bool(earlier) and bool(earlier[-1].skipped)
        what = "a skipped step, infinities among them," if skipped else "an earlier step"
        message = (
            f"Gradients of {what} were not cleared, and the next backward adds to them, {in_steps(events)}."
        )
        evidence = {"after_skipped_step": skipped, "gradients": first.gradients.get("mixed", 0)}
        asked = [
            e
            for step in earlier[-1:]
            for e in between(trace, step.order, first.order, "read_scale", "backward")
        ]
        decides = next((e.source for e in asked if e.kind == "read_scale" and _is_condition(e)), None)
        source = next((e.condition for e in clearing), None) or decides or first.source
        yield finding(CODE, TITLE, "error", source, message, _REMEDY, evidence, len(events))


def _is_condition(event: Event) -> bool:
    return event.source is not None and event.source.text.startswith(("if ", "elif "))


CODE, TITLE = "AMP407", "gradients of an earlier step are still there"
RULE = LoopRule(CODE, TITLE, "error", __doc__ or "", check)

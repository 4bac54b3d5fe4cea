"""AMP426: scaler.update() without a step

What it means
    GradScaler.update is called, and no gradients have been looked at since
    the last time: torch refuses, 'No inf checks were recorded prior to
    update'. Or gradients are divided and judged in every step, and none is
    ever applied: the scale moves and the weights do not.

How it is found
    update() raised for that reason; or optimizers were unscaled whose step
    was never called in the whole run.

What to do
    Call scaler.step(optimizer), then scaler.update().

Example
    scaler.scale(loss).backward(); scaler.unscale_(optimizer); scaler.update()

Sources
    torch.amp.GradScaler.update.
"""

from __future__ import annotations

from collections.abc import Iterable

from ampdoctor.diagnose.loop.rule import LoopRule, between, by_line, finding, in_steps, of_kind
from ampdoctor.diagnose.report import Finding
from ampdoctor.facts.loop import Event, LoopTrace

_REMEDY = "Call scaler.step(optimizer) before scaler.update()."


def check(trace: LoopTrace) -> Iterable[Finding]:
    """One finding for each line that updates a scaler without gradients, or where no step ever follows."""
    refused = [e for e in of_kind(trace, "update") if "inf checks" in e.raised]
    stepped = {e.subject for e in of_kind(trace, "scaler_step", "optimizer_step")}
    idle: list[Event] = []
    last = -1
    for update in of_kind(trace, "update"):
        divided = list(between(trace, last, update.order, "unscale"))
        fell = (update.scale_after or 0.0) < (update.scale or 0.0)  # then leaving the step out was right
        if divided and not fell and not any(e.subject in stepped for e in divided):
            idle.append(update)
        last = update.order
    for found, what in (
        (refused, "no gradients were divided since the last time"),
        (idle, "no step is taken"),
    ):
        for group in by_line(found):
            message = f"scaler.update() is called and {what}, {in_steps(group)}."
            evidence = {"raised": group[0].raised}
            yield finding(CODE, TITLE, "error", group[0].source, message, _REMEDY, evidence, len(group))


CODE, TITLE = "AMP426", "scaler.update() without a step"
RULE = LoopRule(CODE, TITLE, "error", __doc__ or "", check)

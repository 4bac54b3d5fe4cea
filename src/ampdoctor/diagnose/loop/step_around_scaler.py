"""AMP403: optimizer stepped around the scaler

What it means
    optimizer.step() is called although GradScaler.step has dealt with these
    gradients already, or has found them not finite. A step that was skipped
    to protect the weights is taken after all; one that was taken is taken
    twice.

How it is found
    An optimizer stepped outside of GradScaler.step, on gradients that the
    scaler had divided; between the scaler's step or its finding of an
    infinity and this step there was no backward.

What to do
    Call scaler.step(optimizer) only. It calls optimizer.step() itself.

Example
    scaler.step(optimizer); optimizer.step(); scaler.update()

Sources
    IAHispano/Applio#860; torch.amp.GradScaler.step.
"""

from __future__ import annotations

from collections.abc import Iterable

from ampdoctor.diagnose.loop.rule import LoopRule, before, by_line, finding, in_steps, of_kind
from ampdoctor.diagnose.report import Finding
from ampdoctor.facts.loop import LoopTrace

_REMEDY = "Leave out optimizer.step(): scaler.step(optimizer) calls it where the gradients are finite."


def check(trace: LoopTrace) -> Iterable[Finding]:
    """One finding for each line that steps an optimizer whose gradients the scaler has dealt with."""
    found = []
    for event in of_kind(trace, "optimizer_step"):
        if event.scaler:
            continue
        backward = before(trace, event, "backward")
        since = trace.events[backward.order if backward else 0 : event.order]
        again = any(e.kind == "scaler_step" and e.subject == event.subject for e in since)
        unfit = event.finite is False and bool(event.gradients.get("unscaled"))
        if again or unfit:
            found.append(event)
    for group in by_line(found):
        bad = sum(1 for e in group if e.finite is False)
        harm = f", {bad} of them on gradients that are not finite" if bad else ""
        message = (
            f"{group[0].subject_type}.step() is called on gradients that the scaler's step has dealt with "
            f"already, {in_steps(group)}{harm}."
        )
        evidence = {"optimizer": group[0].subject_type, "not_finite": bad}
        yield finding(CODE, TITLE, "error", group[0].source, message, _REMEDY, evidence, len(group))


CODE, TITLE = "AMP403", "optimizer stepped around the scaler"
RULE = LoopRule(CODE, TITLE, "error", __doc__ or "", check)

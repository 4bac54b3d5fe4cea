"""AMP404: scaled gradients applied

What it means
    The loss was multiplied by the loss scale, and the optimizer steps on
    gradients that nobody divided again: the learning rate is in effect the
    scale times larger.

How it is found
    An optimizer stepped outside of GradScaler.step; gradients of its
    parameters come from a scaled loss, and neither unscale_ nor the script
    itself has changed them since.

What to do
    Call scaler.step(optimizer) and scaler.update() in place of
    optimizer.step().

Example
    scaler.scale(loss).backward(); optimizer.step(). An Adam hides the
    mistake, since its step does not depend on the gradient's length, until
    the scale moves.

Sources
    nerfstudio-project/nerfacc#307.
"""

from __future__ import annotations

from collections.abc import Iterable

from ampdoctor.diagnose.loop.rule import LoopRule, by_line, finding, in_steps, scale_words, still_scaled
from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.wording import count_words
from ampdoctor.facts.loop import LoopTrace

_REMEDY = "Call scaler.step(optimizer), then scaler.update()."


def check(trace: LoopTrace) -> Iterable[Finding]:
    """One finding for each line that steps an optimizer on gradients which a scale still multiplies."""
    found = [(event, at) for event, at in still_scaled(trace, "optimizer_step") if not event.scaler]
    for group in by_line(event for event, _ in found):
        at = next(s for e, s in found if e is group[0])
        scaled = group[0].gradients.get("scaled", 0)
        message = (
            f"{group[0].subject_type}.step() applies {count_words(scaled, 'gradient')} that "
            "are still multiplied "
            f"by the loss scale ({scale_words(at)}), {in_steps(group)}."
        )
        evidence = {"optimizer": group[0].subject_type, "scaled": scaled, "loss_scale": at}
        yield finding(CODE, TITLE, "error", group[0].source, message, _REMEDY, evidence, len(group))


CODE, TITLE = "AMP404", "scaled gradients applied"
RULE = LoopRule(CODE, TITLE, "error", __doc__ or "", check)

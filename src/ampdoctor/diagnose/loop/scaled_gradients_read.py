"""AMP424: gradients are looked at while still scaled

What it means
    A number is read from gradients (their norm, say, for a log) that the loss
    scale still multiplies: it is the scale times too large, and jumps
    whenever the scale changes.

How it is found
    Between backward and the division a tensor computed from gradients became
    a number or text (item, float, an f-string). Not where the script asks for
    the scale in the same step, divides by it, or only asks whether the number
    is finite.

What to do
    Call scaler.unscale_(optimizer) first, or divide by scaler.get_scale().

Example
    scaler.scale(loss).backward(); log(model.weight.grad.norm().item())

Sources
    wandb/wandb#4369 and #9092; Lightning-AI/pytorch-lightning#11407.
"""

from __future__ import annotations

from collections.abc import Iterable

from ampdoctor.diagnose.loop.reads import reads_of
from ampdoctor.diagnose.loop.rule import LoopRule, by_line, finding, in_steps, scale_words
from ampdoctor.diagnose.report import Finding
from ampdoctor.facts.loop import LoopTrace

_REMEDY = "Read gradients after scaler.unscale_(optimizer), or divide by scaler.get_scale()."


def check(trace: LoopTrace) -> Iterable[Finding]:
    """One finding for each line that reads a number from gradients which carry the scale."""
    reads = reads_of(trace, "gradient", "penalty")
    for group in by_line(event for event, _ in reads):
        at = next(scale for event, scale in reads if event is group[0])
        message = (
            "A number is read from gradients that are still multiplied by the loss scale "
            f"({scale_words(at)}), {in_steps(group)}."
        )
        evidence = {"loss_scale": at}
        yield finding(CODE, TITLE, "warning", group[0].source, message, _REMEDY, evidence, len(group))


CODE, TITLE = "AMP424", "gradients are looked at while still scaled"
RULE = LoopRule(CODE, TITLE, "warning", __doc__ or "", check)

"""AMP425: the loss that is logged is the scaled one

What it means
    A number is read from what GradScaler.scale gave back: it is the loss
    times the loss scale, not the loss, and jumps whenever the scale changes.

How it is found
    A scaled loss, or what was computed from one, became a number or text
    (item, float, an f-string). Not where the script asks for the scale in the
    same step, or divides by it.

What to do
    Keep the loss under a name of its own: scaler.scale(loss).backward(), then
    log loss.item().

Example
    loss = scaler.scale(loss); loss.backward(); total += loss.item()

Sources
    torch.amp.GradScaler.scale.
"""

from __future__ import annotations

from collections.abc import Iterable

from ampdoctor.diagnose.loop.reads import reads_of
from ampdoctor.diagnose.loop.rule import LoopRule, by_line, finding, in_steps, scale_words
from ampdoctor.diagnose.report import Finding
from ampdoctor.facts.loop import LoopTrace

_REMEDY = "Log the loss as it is before scaler.scale."


def check(trace: LoopTrace) -> Iterable[Finding]:
    """One finding for each line that reads a number from a scaled loss."""
    reads = reads_of(trace, "loss")
    for group in by_line(event for event, _ in reads):
        at = next(scale for event, scale in reads if event is group[0])
        message = f"The number is the loss times the loss scale ({scale_words(at)}), {in_steps(group)}."
        evidence = {"loss_scale": at}
        yield finding(CODE, TITLE, "warning", group[0].source, message, _REMEDY, evidence, len(group))


CODE, TITLE = "AMP425", "the loss that is logged is the scaled one"
RULE = LoopRule(CODE, TITLE, "warning", __doc__ or "", check)

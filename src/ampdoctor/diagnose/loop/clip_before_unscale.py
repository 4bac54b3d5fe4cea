"""AMP401: clipped while still scaled

What it means
    Gradients are clipped before GradScaler.unscale_ has divided them: the
    threshold is compared with a norm that is the loss scale times too large.
    Nearly every step is cut down to a length of threshold / scale.

How it is found
    At the call of clip_grad_norm_ or clip_grad_value_ gradients of its
    parameters come from a scaled loss and have not been divided since.

What to do
    Call scaler.unscale_(optimizer) first, once a step and optimizer, then
    clip, then scaler.step(optimizer). If only some of the parameters are
    still scaled, another optimizer owns them: unscale that one too.

Example
    scaler.scale(loss).backward(); clip_grad_norm_(model.parameters(), 1.0);
    scaler.step(optimizer): at scale 65,536 the clipped step is 65,536 times
    too small.

Sources
    milesial/Pytorch-UNet#468; the AMP recipes of PyTorch, 'Gradient
    clipping'.
"""

from __future__ import annotations

from collections.abc import Iterable

from ampdoctor.diagnose.loop.rule import LoopRule, by_line, finding, in_steps, scale_words, still_scaled
from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.wording import count_words
from ampdoctor.facts.loop import LoopTrace

_REMEDY = "Call scaler.unscale_(optimizer) before clipping."


def check(trace: LoopTrace) -> Iterable[Finding]:
    """One finding for each line that clips gradients which a scale other than 1 still multiplies."""
    clips = still_scaled(trace, "clip")
    for group in by_line(event for event, _ in clips):
        first = group[0]
        at = next(s for e, s in clips if e is first)
        scaled, every = first.gradients.get("scaled", 0), sum(first.gradients.values())
        part = "" if scaled == every else f" {scaled} of {every} are: another optimizer's, perhaps."
        message = (
            f"{first.detail} clips {count_words(scaled, 'gradient')} that are still "
            "multiplied by the loss scale "
            f"({scale_words(at)}), {in_steps(group)}.{part}"
        )
        evidence = {"scaled": scaled, "gradients": every, "loss_scale": at}
        yield finding(CODE, TITLE, "error", first.source, message, _REMEDY, evidence, len(group))


CODE, TITLE = "AMP401", "clipped while still scaled"
RULE = LoopRule(CODE, TITLE, "error", __doc__ or "", check)

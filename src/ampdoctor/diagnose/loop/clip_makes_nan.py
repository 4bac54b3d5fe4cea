"""AMP402: clipping an infinite norm

What it means
    The norm of the gradients is inf or NaN. clip_grad_norm_ multiplies by
    threshold / norm, so every finite gradient becomes 0 and every infinite
    one NaN, or all become NaN; and the optimizer then applies them. Clipping
    is no protection against overflow.

How it is found
    clip_grad_norm_ returned a norm that is not finite, and afterwards an
    optimizer stepped on gradients that are not finite, outside of
    GradScaler.step.

What to do
    Let GradScaler unscale and step: it skips such a step. Without one, look
    at the norm first (error_if_nonfinite=True, or `if norm.isfinite():
    optimizer.step()`).

Example
    A static scale of 4,096, gradients divided by hand, clip_grad_norm_(...,
    0.5), optimizer.step(): the first overflow makes the weights NaN.

Sources
    thu-ml/tianshou#19; torch.nn.utils.clip_grad_norm_.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from ampdoctor.diagnose.loop.rule import LoopRule, between, by_line, finding, in_steps, of_kind
from ampdoctor.diagnose.report import Finding
from ampdoctor.facts.loop import LoopTrace

_REMEDY = (
    "Skip a step whose gradient norm is not finite: GradScaler does, or ask norm.isfinite() before stepping."
)


def check(trace: LoopTrace) -> Iterable[Finding]:
    """One finding for each line that clips by a norm that is not finite, where the result is applied."""
    clips = [e for e in of_kind(trace, "clip") if e.finite is False]
    ends = {e.order: len(trace.events) for e in clips}
    for event, following in pairwise(clips):
        ends[event.order] = following.order
    harmful = []
    for event in clips:
        cleared = next(
            (e.order for e in between(trace, event.order, ends[event.order], "zero_grad")), ends[event.order]
        )
        steps = between(trace, event.order, cleared, "optimizer_step")
        if any(not step.scaler and step.finite is False for step in steps):
            harmful.append(event)
    for group in by_line(harmful):
        message = (
            f"The norm of the gradients is "
            f"{group[0].value if group[0].value is not None else 'not finite'}, and "
            f"{group[0].detail} turns them into NaN that the optimizer applies, {in_steps(group)}."
        )
        yield finding(
            CODE, TITLE, "error", group[0].source, message, _REMEDY, {"step": group[0].step}, len(group)
        )


CODE, TITLE = "AMP402", "clipping an infinite norm"
RULE = LoopRule(CODE, TITLE, "error", __doc__ or "", check)

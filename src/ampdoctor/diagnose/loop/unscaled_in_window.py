"""AMP419: unscaled before the accumulation was over

What it means
    unscale_ divides what has been summed so far; the next backward adds
    gradients that still carry the scale, and the sum is wrong. A second
    unscale_ in the same step raises.

How it is found
    unscale_ was called, a scaled backward followed, and then came another
    unscale_ or the step, without the gradients having been cleared.

What to do
    Call unscale_ once, after the last backward of the accumulation.

Example
    for micro in batch: scaler.scale(loss(micro)).backward();
    scaler.unscale_(optimizer)

Sources
    The AMP recipes of PyTorch, 'Gradient accumulation'.
"""

from __future__ import annotations

from collections.abc import Iterable

from ampdoctor.diagnose.loop.rule import LoopRule, before, between, by_line, finding, in_steps, of_kind
from ampdoctor.diagnose.report import Finding
from ampdoctor.facts.loop import LoopTrace

_REMEDY = "Call unscale_ once, after the last backward of the step."


def check(trace: LoopTrace) -> Iterable[Finding]:
    """One finding for each line that unscales gradients to which a scaled backward then adds."""
    found = []
    for event in of_kind(trace, "unscale", "scaler_step"):
        if not event.gradients.get("mixed"):
            continue
        turn = before(trace, event, "scaler_step", "optimizer_step")
        since = between(trace, -1 if turn is None else turn.order, event.order, "backward")
        backward = next((b for b in since if b.gradients.get("unscaled")), None)
        if backward is None:
            continue
        earlier = before(trace, backward, "unscale", "scaler_step")
        if earlier is not None and earlier.kind == "unscale" and earlier.detail != "by step":
            found.append(earlier)
    for group in by_line(found):
        message = (
            "Gradients are divided by the scale, and a further backward adds scaled ones to them, "
            f"{in_steps(group)}."
        )
        evidence = {"gradients": sum(group[0].gradients.values())}
        yield finding(CODE, TITLE, "error", group[0].source, message, _REMEDY, evidence, len(group))


CODE, TITLE = "AMP419", "unscaled before the accumulation was over"
RULE = LoopRule(CODE, TITLE, "error", __doc__ or "", check)

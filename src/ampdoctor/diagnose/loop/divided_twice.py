"""AMP409: divided by the scale twice

What it means
    The same gradients are divided by the loss scale a second time: they end
    up the scale times too small. GradScaler keeps its books by optimizer
    object, so a wrapper and the optimizer inside it are two; with the same
    object twice it raises.

How it is found
    unscale_, or a step that unscales by itself, met gradients that had been
    divided since the last backward.

What to do
    Unscale once per optimizer and step, and give unscale_ and step the same
    object: the inner optimizer, not its wrapper.

Example
    scaler.unscale_(wrapper); clip_grad_norm_(...);
    scaler.step(wrapper.optimizer)

Sources
    huggingface/accelerate#113.
"""

from __future__ import annotations

from collections.abc import Iterable

from ampdoctor.diagnose.loop.rule import LoopRule, finding, in_steps, of_kind, scale_words
from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.wording import count_words
from ampdoctor.facts.loop import Event, LoopTrace

_REMEDY = "Unscale once a step, with the same optimizer object that scaler.step gets."


def check(trace: LoopTrace) -> Iterable[Finding]:
    """One finding for each line whose division is done again."""
    lines: dict[object, list[Event]] = {}
    for event in of_kind(trace, "unscale"):
        if not event.gradients.get("unscaled"):
            continue
        earlier = trace.events[event.accumulates_onto] if event.accumulates_onto is not None else event
        culprit = event if event.raised or earlier.kind != "unscale" else earlier
        lines.setdefault(culprit.source, []).append(event)
    for events in lines.values():
        twice = events[0].gradients.get("unscaled", 0)
        message = (
            f"{count_words(twice, 'gradient')} that had been divided by the loss scale "
            f"({scale_words(events[0].scale)}) "
            f"are divided again, {in_steps(events)}."
        )
        evidence = {"gradients": twice, "loss_scale": events[0].scale, "raised": events[0].raised}
        line = events[0].source if events[0].raised else trace.events[events[0].accumulates_onto or 0].source
        yield finding(CODE, TITLE, "error", line, message, _REMEDY, evidence, len(events))


CODE, TITLE = "AMP409", "divided by the scale twice"
RULE = LoopRule(CODE, TITLE, "error", __doc__ or "", check)

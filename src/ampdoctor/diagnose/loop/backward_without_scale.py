"""AMP410: backward of a loss that was not scaled

What it means
    Backward ran from a loss that GradScaler.scale has not multiplied, and the
    gradients are divided by the scale all the same: they are the scale times
    too small, and what FP16 rounds to zero is lost as without a scaler.

How it is found
    unscale_ or scaler.step met gradients of a backward whose loss was not
    multiplied, neither by scaler.scale nor by the value of get_scale().

What to do
    Call scaler.scale(loss).backward(), for every loss whose gradients the
    scaler's optimizer gets.

Example
    loss.backward(); scaler.step(optimizer); scaler.update()

Sources
    The AMP recipes of PyTorch, 'Typical mixed precision training'.
"""

from __future__ import annotations

from collections.abc import Iterable

from ampdoctor.diagnose.loop.rule import LoopRule, before, by_line, finding, in_steps, of_kind, scale_words
from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.wording import count_words
from ampdoctor.facts.loop import Event, LoopTrace

_REMEDY = "Call scaler.scale(loss).backward()."


def check(trace: LoopTrace) -> Iterable[Finding]:
    """One finding for each backward without a scale whose gradients a scaler divides."""
    found = []
    for event in of_kind(trace, "unscale"):
        if event.gradients.get("raw") and event.scale != 1.0 and event.accumulates_onto is not None:
            found.append((trace.events[event.accumulates_onto], event))
    for event in of_kind(trace, "scaler_step"):
        backward = before(trace, event, "backward")
        unscaled_yet = event.raised and event.gradients.get("raw")  # a scaler that never scaled refuses
        if backward is not None and (unscaled_yet or _mixes(event, backward)):
            found.append((backward, event))
    for group in by_line(backward for backward, _ in found):
        division = next(d for b, d in found if b is group[0])
        raw = division.gradients.get("raw", 0) or division.gradients.get("mixed", 0)
        message = (
            f"{count_words(raw, 'gradient')} of a loss that was not scaled are divided by the loss scale "
            f"({scale_words(division.scale)}), {in_steps(group)}."
        )
        evidence = {"gradients": raw, "loss_scale": division.scale}
        yield finding(CODE, TITLE, "error", group[0].source, message, _REMEDY, evidence, len(group))


def _mixes(step: Event, backward: Event) -> bool:
    """Gradients that carry the scale and gradients that do not were summed."""
    onto_scaled = not backward.scaler and backward.gradients.get("scaled")
    onto_raw = backward.scaler and backward.gradients.get("raw")
    return bool(step.gradients.get("mixed") and step.scale != 1.0 and (onto_scaled or onto_raw))


CODE, TITLE = "AMP410", "backward of a loss that was not scaled"
RULE = LoopRule(CODE, TITLE, "error", __doc__ or "", check)

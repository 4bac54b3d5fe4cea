"""AMP406: scale changed inside an accumulation

What it means
    Gradients of several backwards are summed, and the scale changed between
    two of them: the sum has terms at different scales, and dividing by the
    last one weighs them wrongly.

How it is found
    A backward added to gradients that still carry a scale, its own scale is
    another, and the sum was unscaled afterwards.

What to do
    Call scaler.update() once per optimizer step, after it, never between the
    backwards that it sums.

Example
    Four micro-batches to a step, and scaler.update() after each of them.

Sources
    pytorch/pytorch#36601; huggingface/accelerate#2866; the AMP recipes of
    PyTorch, 'Gradient accumulation'.
"""

from __future__ import annotations

from collections.abc import Iterable

from ampdoctor.diagnose.loop.rule import LoopRule, between, finding, of_kind, scale_words
from ampdoctor.diagnose.report import Finding
from ampdoctor.facts.loop import Event, LoopTrace
from ampdoctor.facts.site import Source

_REMEDY = "Call scaler.update() only after the optimizer's step, once for all backwards that it sums."


def check(trace: LoopTrace) -> Iterable[Finding]:
    """One finding for each line that changes the scale between backwards whose gradients are summed."""
    lines: dict[Source | None, tuple[Event, Event, Event]] = {}
    for division in of_kind(trace, "unscale"):
        start = division.accumulates_onto
        if start is None or not division.gradients.get("scaled") or trace.events[start].kind != "backward":
            continue
        first = trace.events[start]
        for later in between(trace, start, division.order, "backward"):
            if later.accumulates_onto != start or later.scale == first.scale:
                continue
            updates = between(trace, start, later.order, "update", "load")
            changing = [u for u in updates if u.scale_after != u.scale]
            culprit = changing[0] if changing else later
            lines.setdefault(culprit.source, (first, later, division))
            break
    for source, (first, later, division) in lines.items():
        message = (
            f"In step {division.step:,} gradients at scale {scale_words(first.scale)} and "
            f"{scale_words(later.scale)} are summed: "
            "the scale changed between two backwards of one optimizer step."
        )
        evidence = {"scales": [first.scale, later.scale], "step": division.step}
        yield finding(CODE, TITLE, "error", source, message, _REMEDY, evidence)


CODE, TITLE = "AMP406", "scale changed inside an accumulation"
RULE = LoopRule(CODE, TITLE, "error", __doc__ or "", check)

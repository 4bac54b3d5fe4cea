"""AMP411: scheduler advances on skipped steps

What it means
    The learning-rate scheduler is stepped though GradScaler has skipped the
    optimizer's step. Warm-up and decay run ahead of the training by as many
    steps as were skipped. A fused optimizer is called even then, and skips
    inside: that its step was called proves nothing.

How it is found
    Between two steps of the scheduler all steps of its optimizer were
    skipped: the scaler had found an infinity. Where a fused optimizer was
    called meanwhile, and the scheduler stands under an `if`, that line is
    named.

What to do
    Step the scheduler only if the scale has not fallen: before =
    scaler.get_scale(); scaler.step(...); scaler.update(); if
    scaler.get_scale() >= before: scheduler.step()

Example
    scaler.step(optimizer); scaler.update(); scheduler.step(), with an initial
    scale that is skipped four times.

Sources
    WatChMaL/WatChMaL#106; huggingface/accelerate#4242.
"""

from __future__ import annotations

from collections.abc import Iterable

from ampdoctor.diagnose.loop.rule import LoopRule, finding, in_steps
from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.wording import count_words
from ampdoctor.facts.loop import Event, LoopTrace

_REMEDY = "Step the scheduler only where scaler.get_scale() has not fallen since before scaler.step()."


def check(trace: LoopTrace) -> Iterable[Finding]:
    """One finding for each line that steps a scheduler after nothing but skipped steps."""
    attempts: dict[int, list[Event]] = {}
    called_inside: set[int] = set()
    lines: dict[object, list[Event]] = {}
    fused: set[object] = set()
    for event in trace.events:
        if event.kind == "scaler_step" or (event.kind == "optimizer_step" and not event.scaler):
            attempts.setdefault(event.subject, []).append(event)
        elif event.kind == "optimizer_step":
            called_inside.add(event.subject)
        elif event.kind == "scheduler":
            optimizer = event.accumulates_onto or 0
            tried = attempts.pop(optimizer, [])
            if tried and all(e.skipped for e in tried):
                lines.setdefault(event.source, []).append(event)
                if optimizer in called_inside:
                    fused.add(event.source)
            called_inside.discard(optimizer)
    for source, events in lines.items():
        unseen = source in fused and events[0].condition is not None
        message = (
            f"{events[0].subject_type} advanced {count_words(len(events), 'time')} though the "
            "optimizer's step "
            f"was skipped, {in_steps(events)}."
        )
        if source in fused:
            message += " The optimizer is fused: it was called, and skipped inside."
        evidence = {"scheduler": events[0].subject_type, "advanced": len(events), "fused": source in fused}
        line = events[0].condition if unseen else events[0].source
        yield finding(CODE, TITLE, "warning", line, message, _REMEDY, evidence, len(events))


CODE, TITLE = "AMP411", "scheduler advances on skipped steps"
RULE = LoopRule(CODE, TITLE, "warning", __doc__ or "", check)

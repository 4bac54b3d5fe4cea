"""Numbers that a script reads from tensors which carry the loss scale, and does not divide by it itself."""

from __future__ import annotations

from ampdoctor.diagnose.loop.rule import before, between, of_kind
from ampdoctor.facts.loop import Event, LoopTrace


def reads_of(trace: LoopTrace, *carriers: str) -> list[tuple[Event, float]]:
    """(the event, the scale in the number) of each read from what these words name."""
    found = []
    updates = [e.order for e in of_kind(trace, "update")]
    for event in of_kind(trace, "read_scaled"):
        scaled = before(trace, event, "scale")
        asked_finite_only = event.value is not None
        if event.detail not in carriers or asked_finite_only or scaled is None or scaled.scale in (None, 1.0):
            continue
        start = max((order for order in updates if order < event.order), default=-1)
        end = min((order for order in updates if order > event.order), default=len(trace.events))
        if not any(between(trace, start, end, "read_scale")):  # a number may be divided where no one sees it
            found.append((event, scaled.scale or 1.0))
    return found

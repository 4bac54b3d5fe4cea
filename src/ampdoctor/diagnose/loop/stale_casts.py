"""AMP412: autocast stays open across updates

What it means
    Autocast keeps the half-precision copy of each weight until its outermost
    region ends. A region that is open across an optimizer step goes on using
    copies of the old weights: the model does not train, or not on what it
    computes.

How it is found
    A model ran, an optimizer moved its weights, and the model ran again, all
    inside one autocast region with its cache on.

What to do
    Open autocast anew in each step, around forward and loss only.

Example
    with torch.autocast('cuda', dtype=torch.float16): for batch in loader: ...
    all of the training step

Sources
    pytorch/pytorch#120376; torch.autocast, cache_enabled.
"""

from __future__ import annotations

from collections.abc import Iterable

from ampdoctor.diagnose.loop.rule import LoopRule, finding
from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.wording import count_words
from ampdoctor.facts.loop import Event, LoopTrace

_REMEDY = "Open autocast anew in each step, around the forward pass and the loss."


def check(trace: LoopTrace) -> Iterable[Finding]:
    """One finding for each line that opens a region in which a model runs before and after an update."""
    regions: list[Event] = []
    ran: set[int] = set()
    moved = False
    found: dict[object, list[Event]] = {}
    for event in trace.events:
        if event.kind == "autocast_enter":
            if not regions:
                ran, moved = set(), False
            regions.append(event)
        elif event.kind == "autocast_exit" and regions:
            regions.pop()
        elif not regions or regions[0].detail == "no cache":
            continue
        elif event.kind == "optimizer_step" and ran:
            moved = True
        elif event.kind == "forward":
            if moved and event.subject in ran:
                found.setdefault(regions[0].source, []).append(regions[0])
                moved = False
            ran.add(event.subject)
    for events in found.values():
        message = (
            f"The weights were updated {count_words(len(events), 'time')} inside one autocast "
            "region, and the model "
            "ran on with the half-precision copies of the old ones."
        )
        evidence = {"updates": len(events), "dtype": events[0].dtype}
        yield finding(CODE, TITLE, "error", events[0].source, message, _REMEDY, evidence, len(events))


CODE, TITLE = "AMP412", "autocast stays open across updates"
RULE = LoopRule(CODE, TITLE, "error", __doc__ or "", check)

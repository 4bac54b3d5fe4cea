"""AMP405: scaler.update() is missing

What it means
    GradScaler.step is called again for an optimizer without scaler.update()
    since its last step. torch refuses: 'step() has already been called since
    the last update()'. Until then the scale neither falls after an infinity
    nor grows.

How it is found
    Two steps of the same scaler for the same optimizer with no update between
    them.

What to do
    Call scaler.update() once at the end of each step, after all optimizers'
    steps.

Example
    for batch in loader: ...; scaler.scale(loss).backward();
    scaler.step(optimizer)

Sources
    Azure/MS-AMP#45; torch.amp.GradScaler.update.
"""

from __future__ import annotations

from collections.abc import Iterable

from ampdoctor.diagnose.loop.rule import LoopRule, by_line, finding, in_steps, of_kind
from ampdoctor.diagnose.report import Finding
from ampdoctor.facts.loop import LoopTrace

_REMEDY = "Call scaler.update() after the step of the last optimizer."


def check(trace: LoopTrace) -> Iterable[Finding]:
    """One finding for each line that steps a second time without an update."""
    stepped: set[tuple[int, int]] = set()
    found = []
    for event in of_kind(trace, "scaler_step", "update"):
        if event.kind == "update":
            stepped = {(scaler, optimizer) for scaler, optimizer in stepped if scaler != event.scaler}
            continue
        if (event.scaler, event.subject) in stepped:
            found.append(event)
        stepped.add((event.scaler, event.subject))
    for group in by_line(found):
        message = f"scaler.step() comes again with no scaler.update() since the last one, {in_steps(group)}."
        evidence = {"raised": group[0].raised}
        yield finding(CODE, TITLE, "error", group[0].source, message, _REMEDY, evidence, len(group))


CODE, TITLE = "AMP405", "scaler.update() is missing"
RULE = LoopRule(CODE, TITLE, "error", __doc__ or "", check)

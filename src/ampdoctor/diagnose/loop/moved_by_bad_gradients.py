"""AMP413: weights moved along gradients nobody checked

What it means
    The script changes weights itself, by means of gradients that hold an
    infinity or NaN: sharpness-aware minimisation that climbs before it
    descends, or a hand-written optimizer. GradScaler checks gradients in
    unscale_ and step only, and undoing the climb later cannot bring back what
    became NaN.

How it is found
    Outside an optimizer's step the script changed weights in place while the
    gradients' norm was not finite, and a weight that was finite before is not
    any more.

What to do
    Unscale and look at the gradients first, and leave the change out where
    they are not finite: treat the ascent as a step of its own (scaler.step
    with its own optimizer and an update).

Example
    norm = p.grad.norm(); p.add_(rho * p.grad / norm), right after
    scaler.scale(loss).backward()

Sources
    davda54/sam#11, #7, #97.
"""

from __future__ import annotations

from collections.abc import Iterable

from ampdoctor.diagnose.loop.rule import LoopRule, finding, of_kind
from ampdoctor.diagnose.report import Finding
from ampdoctor.facts.loop import LoopTrace

_REMEDY = "Unscale the gradients and check that they are finite before moving weights along them."


def check(trace: LoopTrace) -> Iterable[Finding]:
    """One finding, at the first time it happens."""
    for event in of_kind(trace, "parameter_changed"):
        if event.finite is not False or not event.value:
            continue
        message = (
            f"In step {event.step:,} weights are changed in place ({event.detail}) by means "
            "of gradients that are "
            "not finite."
        )
        evidence = {"step": event.step, "op": event.detail, "line": event.source.text if event.source else ""}
        yield finding(CODE, TITLE, "error", event.loop or event.source, message, _REMEDY, evidence)
        return


CODE, TITLE = "AMP413", "weights moved along gradients nobody checked"
RULE = LoopRule(CODE, TITLE, "error", __doc__ or "", check)

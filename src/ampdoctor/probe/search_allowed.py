"""What stops the search for loss scales: a fault that every scale has."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ampdoctor.facts.trace import Birth, Pass
from ampdoctor.scales.gradient_harm import harmed
from ampdoctor.scales.recordings import is_finite


def backward_can_be_judged(passes: Sequence[Pass], births: Sequence[Birth]) -> bool:
    """Every batch has gradients, and no fault of the forward or the data spoils them."""
    candidates = [p for p in passes if p.role == "candidate"]
    return (
        not any(_spoils_every_scale(b, passes) for b in births)
        and bool(candidates)
        and all(p.backward_ran and p.raised is None for p in candidates)
    )


def needs_a_scale(run: Pass) -> bool:
    """Gradients that overflow, or that rounding took from a parameter."""
    return not is_finite(run) or bool(harmed(run.parameters))


def _spoils_every_scale(birth: Birth, passes: Sequence[Pass]) -> bool:
    """True for a fault of the forward or the data that comes through to the loss or a gradient.

    An infinity that FP32 survives (a mask's, declared, in the batch or made on purpose) is none, whatever
    gradients an overflow of backward carries it to.
    """
    if birth.site is not None and birth.site.phase == "backward":
        return False
    on_purpose = birth.value == "inf" and (birth.origin != "op" or birth.reference == "same")
    if on_purpose and not birth.reaches_loss and _reference_is_finite(birth.batch, passes):
        return False
    return birth.reaches_loss or bool(birth.reaches_gradients)


def _reference_is_finite(batch: int, passes: Sequence[Pass]) -> bool:
    twin = next(p for p in passes if p.role == "reference" and p.batch == batch)
    loss = twin.loss is not None and math.isfinite(twin.loss)
    return loss and all(p.nan == 0 and p.inf == 0 for p in twin.parameters)

"""Whether loss scales are worth a search, and why they are not."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ampdoctor.facts.trace import Birth, Pass
from ampdoctor.facts.words import NotSearched, Scaler
from ampdoctor.scales.gradient_harm import harmed
from ampdoctor.scales.recordings import is_finite


def why_not_searched(passes: Sequence[Pass], births: Sequence[Birth], scaler: Scaler) -> NotSearched | None:
    """What makes a search useless or needless; None where every batch has gradients that a scale may help."""
    candidates = [p for p in passes if p.role == "candidate"]
    if any(p.raised is not None for p in candidates):
        return "raised"
    if not candidates or not all(p.backward_ran for p in candidates):
        return "no-gradients"
    if any(_spoils_every_scale(b, passes) for b in births):
        return "fault-at-every-scale"
    if all_zero(candidates):
        return "all-zero"
    if scaler == "none" and all(is_finite(p) and not harmed(p.parameters) for p in candidates):
        return "no-scale-needed"
    return None


def all_zero(candidates: Sequence[Pass]) -> bool:
    """True where every gradient is zero, in FP32 too: an empty batch, a hinge that is met everywhere.

    Zeros overflow nowhere and are lost nowhere, so they say nothing of any scale.
    """
    gradients = [p for candidate in candidates for p in candidate.parameters]
    return bool(gradients) and all(
        p.reference_nonzero == 0 and p.zeros == p.numel and not (p.nan or p.inf) for p in gradients
    )


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

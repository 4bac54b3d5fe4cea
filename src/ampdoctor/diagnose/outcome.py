"""What came out of a pass, against the reference: is it healthy, is it wrong, what do the parameters lose."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ampdoctor.diagnose.wording import percent
from ampdoctor.facts.floats import FLOAT_FORMATS
from ampdoctor.facts.trace import ParameterGradient, Pass, Trace
from ampdoctor.facts.words import Role
from ampdoctor.scales.drift import loss_error
from ampdoctor.scales.gradient_harm import (
    GRADIENT_ERROR,
    LOST_SHARE,
    harmed,
    lost_fraction,
    without_noise,
)

LOSS_ERROR = 1e-2
"""A relative loss error past this is no rounding: FP16 keeps 3 digits, a healthy case errs by 1e-4."""


@dataclass(frozen=True)
class GradientDamage:
    """What the parameters lose to rounding in the worst candidate pass at the configured scale."""

    batch: int
    lost_fraction: float | None
    """Of all elements nonzero in the reference, noise left out; None where no gradient was compared."""
    relative_error: float | None
    """Of the whole gradient, in the 2-norm."""
    damaged: tuple[ParameterGradient, ...]
    """Parameters that lose too much, worst first."""


def what_is_lost(parameter: ParameterGradient) -> str:
    """``80.0 %`` of its elements are zero here; ``off by 31.2 %`` where few are, made of ones that are."""
    share = lost_fraction(parameter) or 0.0
    return percent(share) if share > LOST_SHARE else f"off by {percent(parameter.relative_error)}"


def is_healthy(one_pass: Pass, forward_only: bool = False) -> bool:
    """True where the pass ended with a finite loss (or needs none) and finite gradients."""
    if one_pass.raised is not None or one_pass.interrupted:
        return False
    if not forward_only and not is_finite(one_pass.loss):
        return False
    return all(p.nan == 0 and p.inf == 0 for p in one_pass.parameters)


def is_wrong(trace: Trace, batch: int) -> bool:
    """True where the loss, or the gradients at the configured scale, are finite and off by more than
    rounding; where that scale overflows, the gradients are those of one that does not."""
    reference, compared = _compared_passes(trace, batch)
    return reference is not None and any(is_materially_wrong(p, reference) for p in compared)


def what_is_wrong(trace: Trace, batch: int) -> str:
    """``the loss is 5.5 % off FP32``, ``the gradients are 20.1 % off FP32``: of a batch whose outcome is."""
    reference, compared = _compared_passes(trace, batch)
    wrong = next((p for p in compared if reference and is_materially_wrong(p, reference)), None)
    if reference is None or wrong is None:
        return "the outcome is not FP32's"
    error = loss_error(wrong, reference)
    if error is not None and error > LOSS_ERROR:
        return f"the loss is {percent(error)} off FP32"
    error = gradient_error(wrong.parameters)
    return f"the gradients are {percent(error)} off FP32" if error is not None else "gradients are off FP32"


def _compared_passes(trace: Trace, batch: int) -> tuple[Pass | None, list[Pass]]:
    """The batch's reference, and its candidate; with one at another scale whose gradients are finite."""
    reference = find_pass(trace, "reference", batch)
    candidate = find_pass(trace, "candidate", batch, trace.loss_scale)
    if reference is None or candidate is None:
        return reference, []
    if is_healthy(candidate):
        return reference, [candidate]
    others = [p for p in trace.passes if p.role == "ladder" and p.batch == batch and is_healthy(p)]
    return reference, [candidate, *others[-1:]]


def gradient_error(parameters: Sequence[ParameterGradient]) -> float | None:
    """The relative error of these gradients as one vector; None where nothing was compared."""
    error = total = 0.0
    for p in parameters:
        if p.relative_error is not None and p.reference_norm:
            error += (p.relative_error * p.reference_norm) ** 2
            total += p.reference_norm**2
    return math.sqrt(error / total) if total else None


def is_materially_wrong(candidate: Pass, reference: Pass) -> bool:
    """True where the loss or the gradients are off by more than rounding, though all are finite.

    Gradients too small for the format at this loss scale are left out: that is underflow in backward,
    and no infinity of the forward explains it.
    """
    error = loss_error(candidate, reference)
    if error is not None and error > LOSS_ERROR:
        return True
    if not is_healthy(candidate, forward_only=True):
        return False  # a gradient that overflows is wrong for a reason of its own
    fmt = FLOAT_FORMATS.get(candidate.dtype)
    smallest = fmt.min_normal / candidate.loss_scale if fmt else 0.0
    held = [p for p in without_noise(candidate.parameters) if (p.reference_absmax or 0.0) >= smallest]
    error = gradient_error(held)
    return (error is not None and error > GRADIENT_ERROR) or bool(harmed(held))


def gradient_damage(trace: Trace, best: Mapping[int, Mapping[str, float | None]]) -> GradientDamage | None:
    """The worst batch's damage at the configured scale; None where no candidate gradient was compared.

    ``best``: of each batch the parameters' relative errors at the best loss scale known.
    """
    damages = [
        _damage(p, best.get(p.batch, {}))
        for p in trace.passes
        if p.role == "candidate" and p.loss_scale == trace.loss_scale and p.parameters
    ]
    measured = [d for d in damages if d.lost_fraction is not None]
    return max(measured, key=lambda d: (len(d.damaged), d.lost_fraction or 0.0), default=None)


def share_lost(candidate: Pass) -> float | None:
    """Gradient elements lost of those nonzero in the reference, noise left out; None where not compared."""
    compared = _compared(candidate)
    nonzero = sum(p.reference_nonzero or 0 for p in compared)
    return sum(p.lost or 0 for p in compared) / nonzero if nonzero else None


def _compared(candidate: Pass) -> list[ParameterGradient]:
    parameters = without_noise(candidate.parameters)
    return [p for p in parameters if p.lost is not None and p.reference_nonzero]


def _damage(candidate: Pass, best: Mapping[str, float | None]) -> GradientDamage:
    compared = _compared(candidate)
    damaged = harmed(candidate.parameters, best)
    return GradientDamage(
        candidate.batch,
        share_lost(candidate),
        gradient_error(compared),
        tuple(damaged),
    )


def find_pass(trace: Trace, role: Role, batch: int, loss_scale: float | None = None) -> Pass | None:
    """That batch's pass; of several candidates the one at ``loss_scale``, else the last."""
    found = [p for p in trace.passes if p.role == role and p.batch == batch]
    at_scale = [p for p in found if p.loss_scale == loss_scale]
    chosen = at_scale or found
    return chosen[-1] if chosen else None


def is_finite(value: float | None) -> bool:
    """True for a number that is neither NaN nor infinite."""
    return value is not None and math.isfinite(value)

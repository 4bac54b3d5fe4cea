"""What came out of a pass, against the reference: is it healthy, is it wrong, what do the parameters lose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ampdoctor.facts.floats import FLOAT_FORMATS
from ampdoctor.facts.trace import ParameterGradient, Pass, Trace

LOSS_ERROR = 1e-2
"""A relative loss error past this is no rounding: FP16 keeps 3 digits, a healthy case errs by 1e-4."""
GRADIENT_ERROR = 0.2
"""Healthy FP16 gradients err by less than 0.02 against FP32, BF16 by less than 0.05."""
LOST_SHARE = 0.2
"""A parameter that loses more of its gradient elements than this does not learn what FP32 teaches it."""
LOST_ERROR = 0.05
"""...unless what it lost was negligible: the gradient as a whole still agrees to this relative error."""
NOISE = 1e-6
"""A gradient this far below the largest of the model is rounding noise around zero (FP32 keeps 1e-7):
a bias in front of a BatchNorm, the bias of an attention key."""


@dataclass(frozen=True)
class GradientDamage:
    """What the parameters lose to rounding in the worst candidate pass at the configured scale."""

    batch: int
    lost_fraction: float | None
    """Of all elements nonzero in the reference, noise left out; None where no gradient was compared."""
    relative_error: float | None
    """Of the whole gradient, in the 2-norm."""
    worst_error: float | None
    """The largest relative error of one parameter's gradient."""
    damaged: tuple[ParameterGradient, ...]
    """Parameters that lose too much, worst first."""

    def exceeds(self, limit: float) -> bool:
        """True where a parameter is damaged, or more than ``limit`` is lost and it shows in a gradient."""
        if self.damaged:
            return True
        return (self.lost_fraction or 0.0) > limit and (self.worst_error or 0.0) > GRADIENT_ERROR


def is_healthy(one_pass: Pass, forward_only: bool = False) -> bool:
    """True where the pass ended with a finite loss (or needs none) and finite gradients."""
    if one_pass.raised is not None or one_pass.interrupted:
        return False
    if not forward_only and not is_finite(one_pass.loss):
        return False
    return all(p.nan == 0 and p.inf == 0 for p in one_pass.parameters)


def loss_error(candidate: Pass, reference: Pass) -> float | None:
    """|loss - reference loss| / |reference loss|; None where either is not finite or the reference is 0."""
    ours, theirs = candidate.loss, reference.loss
    if ours is None or theirs is None or not math.isfinite(ours - theirs) or theirs == 0:
        return None
    return abs(ours - theirs) / abs(theirs)


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
    fmt = FLOAT_FORMATS.get(candidate.dtype)
    smallest = fmt.min_normal / candidate.loss_scale if fmt else 0.0
    held = [p for p in without_noise(candidate.parameters) if (p.reference_absmax or 0.0) >= smallest]
    error = gradient_error(held)
    return (error is not None and error > GRADIENT_ERROR) or any(_is_damaged(p) for p in held)


def without_noise(parameters: Sequence[ParameterGradient]) -> list[ParameterGradient]:
    """The parameters whose reference gradient is more than rounding noise around zero."""
    largest = max((p.reference_absmax or 0.0 for p in parameters), default=0.0)
    return [p for p in parameters if (p.reference_absmax or 0.0) > NOISE * largest]


def gradient_damage(trace: Trace) -> GradientDamage | None:
    """The worst batch's damage at the configured scale; None where no candidate gradient was compared."""
    damages = [
        _damage(p)
        for p in trace.passes
        if p.role == "candidate" and p.loss_scale == trace.environment.loss_scale and p.parameters
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


def _damage(candidate: Pass) -> GradientDamage:
    compared = _compared(candidate)
    damaged = sorted(filter(_is_damaged, compared), key=lambda p: -(lost_fraction(p) or 0.0))
    return GradientDamage(
        candidate.batch,
        share_lost(candidate),
        gradient_error(compared),
        max((p.relative_error for p in compared if p.relative_error is not None), default=None),
        tuple(damaged),
    )


def lost_fraction(parameter: ParameterGradient) -> float | None:
    """Elements lost, of those nonzero in the reference; None where there is no such element."""
    if parameter.lost is None or not parameter.reference_nonzero:
        return None
    return parameter.lost / parameter.reference_nonzero


def _is_damaged(parameter: ParameterGradient) -> bool:
    share, error = lost_fraction(parameter), parameter.relative_error
    return share is not None and share > LOST_SHARE and error is not None and error > LOST_ERROR


def find_pass(trace: Trace, role: str, batch: int, loss_scale: float | None = None) -> Pass | None:
    """That batch's pass; of several candidates the one at ``loss_scale``, else the last."""
    found = [p for p in trace.passes if p.role == role and p.batch == batch]
    at_scale = [p for p in found if p.loss_scale == loss_scale]
    chosen = at_scale or found
    return chosen[-1] if chosen else None


def is_finite(value: float | None) -> bool:
    """True for a number that is neither NaN nor infinite."""
    return value is not None and math.isfinite(value)

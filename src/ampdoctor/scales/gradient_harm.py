"""Which parameters lose gradient that matters, from the numbers of a comparison with the reference.

The limits are calibrated on the ground-truth cases in ``tests/cases``; each says what it lies between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ampdoctor.facts.trace import ParameterGradient

GRADIENT_ERROR = 0.2
"""Healthy FP16 gradients err by less than 0.02 against FP32, BF16 by less than 0.05; a layer that receives
nothing errs by 1."""
LOST_SHARE = 0.2
"""A parameter that loses more of its gradient elements than this does not learn what FP32 teaches it..."""
LOST_ERROR = 0.05
"""...unless what it lost was negligible: the gradient as a whole still agrees to this relative error."""
NOISE = 1e-5
"""Where the model does not run in float64, a gradient this far below the model's largest is taken for
rounding noise around zero (FP32 keeps 6e-8, and a sum of many terms ten times less): a bias in front of a
BatchNorm, the bias of an attention key, a module that cancels out."""
VANISHES = 2.0**-45
"""A gradient whose largest element is below this share of the model's, or below this number, trains nothing
in FP32 either: Adam's eps of 1e-8 is 3.5e5 times as large. What lies above FP16 can hold: at 2^24, the
highest scale that is recommended, it keeps 2^-49, so all but the smallest sixteenth of such a range."""
UNSURE = 0.1
"""A reference gradient that errs by more than this against float64 is itself rounding noise (a third and
more), or so ill-conditioned that it says nothing of another precision. Healthy ones err by 1e-4."""
SENSITIVE = 4 * 2.0**13
"""A gradient that errs by no more than this times its FP32 error against float64 is as far off as the model
itself makes any rounding: FP16 rounds 2^13 times coarser than FP32, and errors scatter by a few times. A ReLU
that rounding closes loses elements so at every scale alike. Where FP32 errs by the usual 1e-6 or less, this
is less than LOST_ERROR."""
SCALE_DEPENDENT = 2.0
"""An error that falls by this factor at a better scale was underflow; one that stays is plain rounding."""


def without_noise(parameters: Sequence[ParameterGradient]) -> list[ParameterGradient]:
    """The parameters whose reference gradient is no rounding noise around zero, and trains something.

    A comparison with float64 says what is noise; where none was made, ``NOISE`` does.
    """
    floor = NOISE * max((p.reference_absmax or 0.0 for p in parameters), default=0.0)
    return [
        p
        for p in that_train(parameters)
        if ((p.reference_absmax or 0.0) > floor if p.reference_error is None else p.reference_error <= UNSURE)
    ]


def that_train(parameters: Sequence[ParameterGradient]) -> list[ParameterGradient]:
    """The parameters whose gradient is large enough, beside the whole model's, to train anything in FP32."""
    floor = _floor(parameters)
    return [p for p in parameters if (p.reference_absmax or 0.0) >= floor]


def vanishing(parameters: Sequence[ParameterGradient]) -> list[ParameterGradient]:
    """Those whose gradient is nonzero in FP32 and too small to train anything there, the largest first."""
    floor = _floor(parameters)
    found = [p for p in parameters if 0 < (p.reference_absmax or 0.0) < floor]
    return sorted(found, key=lambda p: -(p.reference_absmax or 0.0))


def _floor(parameters: Sequence[ParameterGradient]) -> float:
    return VANISHES * max([1.0, *(p.reference_absmax or 0.0 for p in parameters)])


def lost_fraction(parameter: ParameterGradient) -> float | None:
    """Elements lost, of those nonzero in the reference; None where there is no such element."""
    if parameter.lost is None or not parameter.reference_nonzero:
        return None
    return parameter.lost / parameter.reference_nonzero


def is_harmed(parameter: ParameterGradient, error_at_best: float | None) -> bool:
    """True where underflow takes gradient that matters.

    ``error_at_best`` is the parameter's relative error at the best loss scale known; None where no other
    scale was run.
    """
    share, error = lost_fraction(parameter), parameter.relative_error
    if error is None:
        return False
    sensitive = parameter.reference_error is not None and error <= SENSITIVE * parameter.reference_error
    if share is not None and share > LOST_SHARE and error > LOST_ERROR and not sensitive:
        return True
    return error_at_best is not None and error > GRADIENT_ERROR and error > SCALE_DEPENDENT * error_at_best


def harmed(
    parameters: Sequence[ParameterGradient], best: Mapping[str, float | None] | None = None
) -> list[ParameterGradient]:
    """The parameters that underflow harms, worst first; ``best``: relative errors at the best scale known."""
    found = [p for p in without_noise(parameters) if is_harmed(p, (best or {}).get(p.name))]
    return sorted(found, key=lambda p: (-(lost_fraction(p) or 0.0), -(p.relative_error or 0.0)))

"""Whether the outcome of a pass has parted from the reference's by more than rounding does."""

from __future__ import annotations

import math

from ampdoctor.facts.trace import Pass
from ampdoctor.scales.gradient_harm import GRADIENT_ERROR, without_noise

OUTCOME_ERROR = 0.2
"""Of a loss or of outputs: the losses of the 15 architectures of tests/zoo.py err by at most 6.2e-4 in FP16
and 2.4e-3 in BF16; the mildest of the known faults errs by 0.22."""


def loss_error(candidate: Pass, reference: Pass) -> float | None:
    """|loss - reference loss| / |reference loss|; None where either is not finite or the reference is 0."""
    ours, theirs = candidate.loss, reference.loss
    if ours is None or theirs is None or not math.isfinite(ours - theirs) or theirs == 0:
        return None
    return abs(ours - theirs) / abs(theirs)


def has_parted(candidate: Pass, reference: Pass) -> bool:
    """True where the loss, the outputs of a forward-only pass, or a gradient that is no noise is far off."""
    outcome = (loss_error(candidate, reference), candidate.output_error)
    return any(e is not None and e > OUTCOME_ERROR for e in outcome) or any(
        p.relative_error is not None and p.relative_error > GRADIENT_ERROR
        for p in without_noise(candidate.parameters)
    )

"""Whether the outcome of a pass has parted from the reference's by more than rounding does."""

from __future__ import annotations

import math

from ampdoctor.facts.floats import FLOAT32, FLOAT_FORMATS
from ampdoctor.facts.trace import BufferState, Pass
from ampdoctor.scales.gradient_harm import GRADIENT_ERROR, without_noise

OUTCOME_ERROR = 0.2
"""Of a loss or of outputs: the losses of the 15 architectures of tests/zoo.py err by at most 6.2e-4 in FP16
and 2.4e-3 in BF16; the mildest of the known faults errs by 0.22."""

ALIKE = 32.0
"""Errors count as alike up to this factor. Gradients of small RegNets, ResNets and BiTs of transformers err
by up to 28 times what FP32's error foretells, since a ReLU that rounding turns over costs more than its
share."""


def rounds_alike(error: float | None, reference_error: float | None, dtype: str) -> bool:
    """True of what is as far off as rounding in this format makes it: FP32 rounds 2^13 times finer than FP16,
    2^16 times finer than BF16, and errs by as much less against float64. The model is that sensitive, as with
    batch statistics of a handful of values; no op does anything wrong."""
    if error is None or reference_error is None or dtype not in FLOAT_FORMATS:
        return False
    return error <= ALIKE * reference_error * FLOAT_FORMATS[dtype].epsilon / FLOAT32.epsilon


def far_buffers(candidate: Pass) -> list[BufferState]:
    """What the pass left in buffers further from the reference than its rounding explains, the worst first.

    Only those whose reference was compared with float64: a running mean near zero is far off by itself.
    """
    found = [
        b
        for b in candidate.buffers
        if b.relative_error is not None
        and b.relative_error > OUTCOME_ERROR
        and b.reference_error is not None
        and not rounds_alike(b.relative_error, b.reference_error, candidate.dtype)
    ]
    return sorted(found, key=lambda b: -(b.relative_error or 0.0))


def loss_error(candidate: Pass, reference: Pass) -> float | None:
    """|loss - reference loss| / |reference loss|; None where either is not finite or the reference is 0."""
    ours, theirs = candidate.loss, reference.loss
    if ours is None or theirs is None or not math.isfinite(ours - theirs) or theirs == 0:
        return None
    return abs(ours - theirs) / abs(theirs)


def has_parted(candidate: Pass, reference: Pass) -> bool:
    """True where the loss, the outputs of a forward-only pass, a gradient that is no noise, or what is left
    in a buffer is far off."""
    outcome = (loss_error(candidate, reference), candidate.output_error)
    gradients = (p.relative_error for p in without_noise(candidate.parameters))
    return (
        any(e is not None and e > OUTCOME_ERROR for e in outcome)
        or any(e is not None and e > GRADIENT_ERROR for e in gradients)
        or bool(far_buffers(candidate))
    )

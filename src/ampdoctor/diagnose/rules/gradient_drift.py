"""AMP206: a gradient drifts from the reference

What it means
    Nothing overflowed and little became zero, yet a parameter's gradient is
    far from the one FP32 computes, at the configured loss scale and at the
    recommended one alike. So no scale cures it: bits are lost in forward
    (cancellation, a value next to 1, a long sum in low precision), or the
    model is chaotic and any rounding moves it.

How it is found
    The unscaled gradient is compared with the FP32 pass: the relative error
    in the 2-norm is above 20 % (50 % in BF16, which keeps three bits less),
    and no single op of the forward is to blame: AMP108 would name it. An op
    of backward whose output is off while its inputs agree is named here.
    Healthy FP16 gradients err by less than 2 %. Gradients that are mere
    rounding noise (a bias in front of a BatchNorm) do not count, nor those of
    a model that magnifies any rounding, FP32's own too, nor what underflow
    took (AMP203).

What to do
    Look where the forward loses digits: differences of nearly equal numbers,
    1 - p, means over many elements, variances as E[x^2] - E[x]^2. Do that
    part in FP32.

Example
    var = (x * x).mean() - x.mean() ** 2 in FP16, with a mean far from zero.

Sources
    NVIDIA/apex#226 (the cosine between both gradients as a check).
"""

from __future__ import annotations

from collections.abc import Iterable

from ampdoctor.diagnose.amounts import off_reference
from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.rule import Rule
from ampdoctor.diagnose.verdict import Reading
from ampdoctor.diagnose.wording import count_words, format_name, number, percent, short_op
from ampdoctor.facts.drift import Drift


def check(reading: Reading) -> Iterable[Finding]:
    """One finding for the batch whose gradient drifts most, where no op of the forward explains it."""
    drift = reading.drift
    if drift is None or drift.is_forward or not drift.gradients:
        return
    at = drift.begins
    environment = reading.trace.environment
    batch, found = drift.batch, drift.gradients
    worst = found[0]
    yield Finding(
        code=CODE,
        severity="error",
        title=TITLE,
        module=at.site.module if at is not None else worst.name.rpartition(".")[0],
        op=at.site.op if at is not None else "",
        source=at.source if at is not None else None,
        message=(
            f"The gradient of {count_words(len(found), 'parameter')} is far from FP32's, with no overflow: "
            f"worst {worst.name}, off by {percent(worst.relative_error)}"
            f"{'' if worst.cosine is None else f' (cosine {number(worst.cosine)})'}.{_begins(at)}"
        ),
        amounts=off_reference(p.relative_error for p in found),
        whole_scan=True,
        evidence={
            "batch": batch,
            "relative_error": {p.name: p.relative_error for p in found},
            "begins": None
            if at is None
            else {"kind": at.kind, "error": at.error, "input_error": at.input_error},
        },
        remedy=_remedy(at, format_name(environment.dtype)),
    )


def _begins(at: Drift | None) -> str:
    if at is None:
        return ""
    agree = "agree" if at.input_error is None else f"are off by {percent(at.input_error)}"
    at_op, off = short_op(at.site.op), percent(at.error)
    return f" It begins in backward at {at_op}: its inputs {agree}, its output by {off}."


def _remedy(at: Drift | None, name: str) -> str:
    if at is None:
        return (
            "Look for digits lost in forward: differences of nearly equal numbers, 1 - p, long sums in "
            f"{name}. Do that part in FP32."
        )
    if at.kind == "difference":
        return (
            "Keep for backward what this line needs, instead of a sum from which it is taken again; or keep "
            "that sum in FP32."
        )
    return f"Compute this line of backward in FP32, from values that were not rounded to {name} before."


CODE, TITLE = "AMP206", "a gradient drifts from the reference"
RULE = Rule(CODE, TITLE, "error", __doc__ or "", check)

"""AMP206: a gradient drifts from the reference

What it means
    Nothing overflowed and little became zero, yet a parameter's gradient is
    far from the one FP32 computes, at the configured loss scale and at the
    recommended one alike. So no scale cures it: bits are lost in forward
    (cancellation, a value next to 1, a long sum in low precision), or the
    model is chaotic and any rounding moves it.

How it is found
    The unscaled gradient is compared with the FP32 pass: the relative error
    in the 2-norm is above 20 %. Healthy FP16 gradients err by less than 2 %,
    BF16 by less than 5 %. Gradients that are mere rounding noise (a bias in
    front of a BatchNorm) do not count, nor do those that underflow took
    (AMP203).

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
from ampdoctor.diagnose.outcome import find_pass, is_healthy
from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.rule import Rule
from ampdoctor.diagnose.standing import SILENT
from ampdoctor.diagnose.verdict import Reading
from ampdoctor.diagnose.wording import count_words, format_name, number, percent
from ampdoctor.facts.trace import ParameterGradient
from ampdoctor.scales.gradient_harm import GRADIENT_ERROR, harmed, without_noise


def check(reading: Reading) -> Iterable[Finding]:
    """One finding for the batch whose gradient drifts most."""
    if reading.basis is not None and reading.basis.standing == SILENT:
        return
    environment = reading.trace.environment
    drifted: list[tuple[int, list[ParameterGradient]]] = []
    for batch in range(environment.batches):
        candidate = find_pass(reading.trace, "candidate", batch, environment.loss_scale)
        if candidate is None or not is_healthy(candidate, environment.forward_only):
            continue
        best = reading.best_errors.get(batch, {})
        lost = {p.name for p in harmed(candidate.parameters, best)}
        found = [
            p
            for p in without_noise(candidate.parameters)
            if p.name not in lost and p.relative_error is not None and p.relative_error > GRADIENT_ERROR
        ]
        drifted.append((batch, sorted(found, key=lambda p: -(p.relative_error or 0.0))))
    batch, found = max(drifted, key=lambda item: len(item[1]), default=(0, []))
    if not found:
        return
    worst = found[0]
    yield Finding(
        code=CODE,
        severity="warning",
        title=TITLE,
        module=worst.name.rpartition(".")[0],
        op="",
        source=None,
        message=(
            f"The gradient of {count_words(len(found), 'parameter')} is far from FP32's, with no overflow: "
            f"worst {worst.name}, off by {percent(worst.relative_error)}"
            f"{'' if worst.cosine is None else f' (cosine {number(worst.cosine)})'}."
        ),
        amounts=off_reference(p.relative_error for p in found),
        whole_scan=True,
        evidence={"batch": batch, "relative_error": {p.name: p.relative_error for p in found}},
        remedy=(
            "Look for digits lost in forward: differences of nearly equal numbers, 1 - p, long sums in "
            f"{format_name(environment.dtype)}. Do that part in FP32."
        ),
    )


CODE, TITLE = "AMP206", "a gradient drifts from the reference"
RULE = Rule(CODE, TITLE, "warning", __doc__ or "", check)

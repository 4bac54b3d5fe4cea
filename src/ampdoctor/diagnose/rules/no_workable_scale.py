"""AMP204: no workable loss scale

What it means
    A gradient leaves the format's range even at loss scale 1. Lowering the
    scale below 1 would push the other gradients under the format's floor, and
    below 3e-39 GradScaler's own 1/scale is inf. Usually a local derivative is
    too large for the format (num / den^2 with a small den), or one loss term
    is many times the others.

    Or two parts of the model pull apart: where the gradients of one stop
    overflowing, those of the other have already become zero.

How it is found
    Backward runs at scale 1; the op on the same inputs in float64 is finite,
    so it is a matter of range. For two parts that pull apart: the highest
    scale without overflow is run, and there a parameter still loses more than
    a fifth of its gradient. What would help is read from the histograms of
    the FP32 pass: BF16, the overflowing module in FP32, or a scale of its own
    for it, each with the window it would give.

What to do
    Run this op in FP32, forward and backward: its derivative then stays out
    of FP16. Raise the eps in the divisor. Normalise the loss term. Or train
    in BF16.

Example
    num / (den + 1e-6) with closed gates: the derivative is 1e6, and FP16 ends
    at 65,504.

Sources
    datamol-io/graphium#426 (a gated graph convolution), pytorch/pytorch#99640
    and #96755 (a scale below 1).
"""

from __future__ import annotations

from collections.abc import Iterable

from ampdoctor.diagnose.advice import keep_in_fp32
from ampdoctor.diagnose.amounts import Amounts
from ampdoctor.diagnose.birth_findings import (
    births_of,
    findings_by_place,
    overflow_words,
    sentence,
)
from ampdoctor.diagnose.cause import RANGE
from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.rule import Rule
from ampdoctor.diagnose.standing import JudgedBirth
from ampdoctor.diagnose.verdict import Reading, overflows_at_any_scale
from ampdoctor.diagnose.wording import place, scale, short_op, source_place
from ampdoctor.facts.site import Source
from ampdoctor.scales.reading import Alternative, ScaleReading

_DIVISIONS = ("aten::div", "aten::reciprocal", "aten::rsqrt")


def check(reading: Reading) -> Iterable[Finding]:
    """One finding per place in the backward that overflows even at the lowest scale."""
    births = births_of(reading, _speaks)
    yield from findings_by_place(CODE, TITLE, births, _message, lambda j: _remedy(reading, j))
    scales = reading.scales
    if reading.verdict == "no-workable-scale" and not births and scales is not None:
        yield from _pulled_apart(scales)


def _pulled_apart(scales: ScaleReading) -> Iterable[Finding]:
    """One part overflows where another is still rounded to zero."""
    high, low, ceiling = scales.high_limit, scales.low_limit, scales.ceiling
    if high is None or low is None or ceiling is None:
        return
    helps = [_help(a) for a in scales.alternatives if a.window is not None]
    yield Finding(
        code=CODE,
        severity="error",
        title=TITLE,
        module=high.site.module,
        op=high.site.op,
        source=high.source,
        message=(
            f"Above scale {scale(2.0**ceiling)} the backward of {place(high.site.module)} overflows; there "
            f"the backward of {place(low.site.module)}{_at(low.source)} is still rounded to zero."
        ),
        evidence={
            "ceiling": 2.0**ceiling,
            "overflows": {"module": high.site.module, "op": high.site.op},
            "underflows": {"module": low.site.module, "op": low.site.op, "line": source_place(low.source)},
        },
        amounts=Amounts(f"overflow above {scale(2.0**ceiling)}"),
        remedy=f"{'; or '.join(helps)}." if helps else "Scale the two loss terms apart.",
    )


def _at(source: Source | None) -> str:
    return f" ({source_place(source)})" if source else ""


def _help(alternative: Alternative) -> str:
    window = alternative.window
    assert window is not None
    works = f"scales {scale(2.0**window.low)} to {scale(2.0**window.high)} work"
    if alternative.kind == "bfloat16":
        return f"Train in BF16: {works}"
    if alternative.kind == "module-in-fp32":
        return f"keep {alternative.module} in FP32: {works}"
    return f"give {alternative.module} a loss scale of its own: {works} for it"


def _speaks(judged: JudgedBirth) -> bool:
    return not judged.in_forward and judged.cause == RANGE and overflows_at_any_scale(judged.birth)


def _message(judged: JudgedBirth) -> str:
    birth = judged.birth
    of = f"of {short_op(birth.forward_op)} " if birth.forward_op else ""
    return f"The backward {of}overflows even at scale {scale(birth.loss_scale)}. {overflow_words(judged)}"


def _remedy(reading: Reading, judged: JudgedBirth) -> str:
    advice = keep_in_fp32(reading, judged)
    if judged.birth.forward_op in _DIVISIONS:
        advice += "; or raise the eps in the divisor (1e-3 in FP16)"
    else:
        advice += "; or scale this loss term down"
    if judged.birth.dtype == "float16":
        advice += "; or train in BF16"
    return sentence(advice)


CODE, TITLE = "AMP204", "no workable loss scale"
RULE = Rule(CODE, TITLE, "error", __doc__ or "", check)

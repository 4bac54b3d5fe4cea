"""AMP204: no workable loss scale

What it means
    A gradient leaves the format's range even at loss scale 1. Lowering the
    scale below 1 would push the other gradients under the format's floor, and
    below 3e-39 GradScaler's own 1/scale is inf. Usually a local derivative is
    too large for the format (num / den^2 with a small den), or one loss term
    is many times the others.

How it is found
    Backward runs at scale 1; the op on the same inputs in float64 is finite,
    so it is a matter of range.

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

from ampdoctor.diagnose.birth_findings import (
    births_of,
    findings_by_place,
    keep_in_fp32,
    overflow_words,
    sentence,
)
from ampdoctor.diagnose.births import JudgedBirth
from ampdoctor.diagnose.cause import RANGE
from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.rule import Rule
from ampdoctor.diagnose.verdict import Reading, overflows_at_any_scale
from ampdoctor.diagnose.wording import scale, short_op

_DIVISIONS = ("aten::div", "aten::reciprocal", "aten::rsqrt")


def check(reading: Reading) -> Iterable[Finding]:
    """One finding per place in the backward that overflows even at the lowest scale."""
    births = births_of(reading, _speaks)
    return findings_by_place(CODE, TITLE, births, _message, lambda j: _remedy(reading, j))


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

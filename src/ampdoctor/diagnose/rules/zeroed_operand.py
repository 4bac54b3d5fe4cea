"""AMP104: meets a value that rounding zeroed

What it means
    A value that is not zero in exact arithmetic became zero by rounding, and
    an op then divided by it, took its log or its root. Either it was too
    small for the format (FP16 keeps nothing at or below 2^-25 = 3e-8), or it
    was a difference from 1: next to 1, FP16 moves in steps of 4.9e-4 below
    and 9.8e-4 above, so that 1 - 1e-6 is 1, and 1 - p, log1p(-p), sqrt(1 -
    cos^2) meet an exact zero. It may show in backward only: the derivative of
    sqrt at 0 is infinite.

How it is found
    The op gives inf or NaN on these very inputs in float64 too, while the
    FP32 pass, whose inputs were not rounded, is finite at the same site. The
    report follows the zero back to the line where it was made.

What to do
    Compute the difference, the norm or the variance in FP32 and round the
    result. Use an eps that survives: in FP16 nothing below 6e-8 exists, and
    next to 1 nothing below 4.9e-4. Use the stable form: logsigmoid,
    binary_cross_entropy_with_logits, logsumexp, log_softmax, expm1. BF16
    cures values that were too small. It makes rounding next to 1 worse (steps
    of 3.9e-3).

Example
    x / (x.norm() + 1e-8) in half: the eps is 0, and an all-zero row gives 0 /
    0.

Sources
    pytorch/pytorch#40497 (focal loss), #32137 (F.normalize), #183605
    (rsqrt(var + eps)), ronghuaiyang/ arcface-pytorch#91 (sqrt(1 - cos^2)),
    fastino-ai/GLiNER2#155 (a clamp to 1 - 1e-6).
"""

from __future__ import annotations

from collections.abc import Iterable

from ampdoctor.diagnose.birth_findings import (
    WITHOUT_THE_DIFFERENCE,
    births_of,
    findings_by_place,
    samples_sentence,
    sentence,
)
from ampdoctor.diagnose.cause import CANCELLATION, FLUSH
from ampdoctor.diagnose.constants import is_vanished_eps, root_of, rounded_next_to_one
from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.rule import Rule
from ampdoctor.diagnose.standing import JudgedBirth
from ampdoctor.diagnose.verdict import Reading
from ampdoctor.diagnose.wording import format_name, number, place, short_op, source_place
from ampdoctor.facts.trace import ZeroOrigin


def check(reading: Reading) -> Iterable[Finding]:
    """One finding per place that is undefined only because rounding had made a zero."""
    births = births_of(reading, lambda j: j.cause in (FLUSH, CANCELLATION))
    return findings_by_place(
        CODE, TITLE, births, lambda j: _message(reading, j), lambda j: _remedy(reading, j)
    )


def _message(reading: Reading, judged: JudgedBirth) -> str:
    birth = judged.birth
    op = short_op(birth.site.op) if birth.site else ""
    backward = f"The backward of {short_op(birth.forward_op) or op}: " if judged.phase == "backward" else ""
    if judged.cause == CANCELLATION:
        fp32 = f" FP32 has {number(birth.reference_value)} here." if birth.reference_value is not None else ""
        return (
            f"{backward}{op} is given {number(birth.argument)}: a difference of nearly equal numbers, of "
            f"which rounding left a negative one.{fp32}{samples_sentence(judged)}"
        )
    what = f"{backward}{op} meets a value that {reading.fmt_name} rounded away"
    fp32 = f"; FP32 has {number(birth.reference_value)}" if birth.reference_value is not None else ""
    return f"{what}{fp32}.{_root_words(root_of(birth))}{samples_sentence(judged)}"


def _root_words(root: ZeroOrigin | None) -> str:
    """`` It became zero at model.py:12 (head, rsub).`` or ''."""
    if root is None:
        return ""
    where = source_place(root.source)
    site = f"{place(root.site.module)}, {short_op(root.site.op)}"
    made = ""
    if root.made_by is not None:
        made = f", made by {short_op(root.made_by.op)} at {source_place(root.made_by.source)}"
    return f" It became zero {f'at {where} ({site})' if where else f'in {site}'}{made}."


def _remedy(reading: Reading, judged: JudgedBirth) -> str:
    birth = judged.birth
    name = format_name(reading.fmt.name)
    if judged.cause == CANCELLATION:
        return sentence(WITHOUT_THE_DIFFERENCE + ". BF16 is no cure: it keeps fewer digits of both numbers")
    root = root_of(birth)
    line = source_place(root.source) if root else ""
    if is_vanished_eps(birth, reading.fmt):
        return (
            f"The eps of {line or 'this line'} is 0 in {name}: add it in FP32, or use one that {name} can "
            f"hold (above {number(reading.fmt.min_subnormal)}, better {number(reading.fmt.min_normal)})."
        )
    start = f"compute {line or 'the value that became zero'} in FP32"
    if rounded_next_to_one(birth):
        form = _STABLE.get(birth.site.op if birth.site else "", "or use the numerically stable form")
        return sentence(f"{start}, {form}. BF16 is no cure: it rounds next to 1 more coarsely")
    cure = "; BF16 would hold it too" if reading.fmt.name == "float16" else ""
    return sentence(f"{start}, or keep it away from zero with an eps that {name} can hold{cure}")


_STABLE = {
    "aten::log": "or use logsigmoid / binary_cross_entropy_with_logits on the logits",
    "aten::log1p": "or work on the logits (logsigmoid)",
}

CODE, TITLE = "AMP104", "meets a value that rounding zeroed"
RULE = Rule(CODE, TITLE, "error", __doc__ or "", check)

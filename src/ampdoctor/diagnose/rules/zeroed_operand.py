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
    report follows the zero back to the line where it was made. A root or a log
    of a negative number, that FP32 has as a positive one, is told apart: there
    the rounding of a difference is to blame, and no zero.

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

from ampdoctor.diagnose.advice import eps_remedy
from ampdoctor.diagnose.birth_findings import (
    WITHOUT_THE_DIFFERENCE,
    births_of,
    findings_by_place,
    samples_sentence,
    sentence,
)
from ampdoctor.diagnose.cause import CANCELLATION, FLUSH
from ampdoctor.diagnose.constants import first_zero, root_of, rounded_next_to_one, vanished_eps
from ampdoctor.diagnose.domain import domain_of
from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.rule import Rule
from ampdoctor.diagnose.standing import JudgedBirth
from ampdoctor.diagnose.verdict import Reading
from ampdoctor.diagnose.wording import format_name, number, place, short_op, source_place
from ampdoctor.facts.trace import Birth, ZeroOrigin
from ampdoctor.facts.words import Severity


def check(reading: Reading) -> Iterable[Finding]:
    """One finding per place that is undefined only because rounding had made a zero."""
    births = births_of(reading, lambda j: j.cause == FLUSH)
    # Where AMP106 names the eps that should have prevented it, this is what comes of that.
    told = reading.policy.applies("AMP106")
    guarded = [j for j in births if told and vanished_eps(j.birth, reading.fmt)]
    unguarded = [j for j in births if j not in guarded]
    yield from _findings(reading, TITLE, unguarded, "error")
    yield from _findings(reading, TITLE, guarded, "info")
    yield from _findings(
        reading, _OUT_OF_DOMAIN, births_of(reading, lambda j: j.cause == CANCELLATION), "error"
    )


def _findings(
    reading: Reading, title: str, births: list[JudgedBirth], severity: Severity
) -> Iterable[Finding]:
    return findings_by_place(
        CODE, title, births, lambda j: _message(reading, j), lambda j: _remedy(reading, j), severity
    )


def _message(reading: Reading, judged: JudgedBirth) -> str:
    birth = judged.birth
    op = short_op(birth.site.op) if birth.site else ""
    backward = f"The backward of {short_op(birth.forward_op) or op}: " if judged.phase == "backward" else ""
    if judged.cause == CANCELLATION:
        fp32 = f" FP32 has {number(birth.reference_value)} here." if birth.reference_value is not None else ""
        return (
            f"{backward}{op} is given {number(birth.argument)}: a difference of nearly equal numbers, of "
            f"which rounding left {_what_is_left(birth)}.{fp32}{samples_sentence(judged)}"
        )
    what = f"{backward}{op} meets a value that {reading.fmt_name} rounded away"
    fp32 = f"; FP32 has {number(birth.reference_value)}" if birth.reference_value is not None else ""
    return f"{what}{fp32}.{_root_words(root_of(birth, reading.fmt))}{samples_sentence(judged)}"


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
        return _back_into_domain(birth)
    if vanished_eps(birth, reading.fmt):
        return eps_remedy(reading, birth)
    root = first_zero(birth)
    line = source_place(root.source) if root else ""
    op = birth.site.op if birth.site else ""
    if rounded_next_to_one(birth):
        start = f"compute {line or source_place(birth.source) or 'this op'} and what goes into it in FP32"
        if root is not None and root.site.op == "aten::sub" and root.constant is None:
            return sentence(f"{start}; or {WITHOUT_THE_DIFFERENCE}. BF16 is no cure: it keeps fewer digits")
        form = _STABLE.get(op, "or use a form without the difference from 1")
        return sentence(f"{start}, {form}. BF16 is no cure: it rounds next to 1 more coarsely")
    cure = "; BF16 would hold it too" if reading.fmt.name == "float16" else ""
    start = f"compute {line or 'the value that became zero'} in FP32"
    product = root is not None and root.site.op in _PRODUCTS
    if product and op in _LOGS:
        return sentence(f"{start}, or take the log first (2 * log(x) for log(x ** 2)){cure}")
    where = " added to the product, not to its factors" if product else ""
    return sentence(f"{start}, or keep it away from zero with an eps that {name} can hold{where}{cure}")


def _what_is_left(birth: Birth) -> str:
    below = birth.argument is not None and birth.argument < 0 and (domain_of(birth) or (0.0,))[0] == 0
    return "a negative one" if below else "one outside the domain"


def _back_into_domain(birth: Birth) -> str:
    """Where the number that left the domain was made, and the bound to put on it."""
    maker = birth.operands[0].made_by if birth.operands else None
    line = source_place(maker.source) if maker else ""
    start = f"compute {line or 'its argument'} and what goes into it in FP32; or "
    return sentence(
        start + WITHOUT_THE_DIFFERENCE + ". BF16 is no cure: it keeps fewer digits of both numbers"
    )


_PRODUCTS = ("aten::pow", "aten::mul", "aten::square")
_LOGS = ("aten::log", "aten::log2", "aten::log10")
_STABLE = {
    "aten::log": "or use logsigmoid / binary_cross_entropy_with_logits on the logits",
    "aten::log1p": "or work on the logits (logsigmoid)",
}
_OUT_OF_DOMAIN = "takes a value that rounding moved out of its domain"

CODE, TITLE = "AMP104", "meets a value that rounding zeroed"
RULE = Rule(CODE, TITLE, "error", __doc__ or "", check)

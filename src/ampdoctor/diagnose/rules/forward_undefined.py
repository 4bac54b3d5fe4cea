"""AMP102: undefined in forward, in FP32 too

What it means
    An op of the forward made a NaN or an infinity that the FP32 pass makes as
    well, at the same elements: the softmax of a row that is -inf throughout,
    the log of a true zero, exp of 180, a loss over no labels. No precision
    and no loss scale cures it. It is blamed on FP16 because mixed precision
    is where people look.

How it is found
    The op's inputs carry no value of that kind, the op on the same inputs in
    float64 is not finite either, and the FP32 pass has the value at the same
    site and elements. What FP32 has too and survives with a finite loss and
    finite gradients is not reported.

What to do
    Mend the formula or the data: an eps inside the root, a clamp before exp
    or log, torch.where on the argument rather than on the result, skipping a
    sample without labels, at least one unmasked position per row.

Example
    A fully padded sequence: every score of the row is -inf, its softmax is
    NaN. With ignore_index the loss stays finite and only the gradients turn
    NaN.

Sources
    pytorch/pytorch#41508 (padded rows), #116349 (all labels ignored),
    ultralytics/yolov5#2376 (an eps lost in FP32), kornia/kornia#3481 (exp of
    a parameter), FangShancheng/ABINet#65 (CTC target longer than its input).
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
from ampdoctor.diagnose.cause import GENUINE
from ampdoctor.diagnose.domain import leaves_domain
from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.rule import Rule
from ampdoctor.diagnose.standing import JudgedBirth, only_the_derivative
from ampdoctor.diagnose.verdict import Reading
from ampdoctor.diagnose.wording import number, short_op

_UNMASK = "leave at least one position per row unmasked, or zero such rows after the softmax"
_INSIDE_ONE = "clamp the argument to [-1 + eps, 1 - eps], eps 1e-6 or more in FP32"
_REMEDIES = {
    "aten::_softmax": _UNMASK,
    "aten::_safe_softmax": _UNMASK,
    "aten::_log_softmax": _UNMASK,
    "aten::log": "clamp the argument away from zero, or take the log inside a stable function (logsigmoid)",
    "aten::log1p": "clamp the argument away from -1",
    "aten::div": "add an eps to the divisor that survives next to the other terms",
    "aten::rsqrt": "add an eps inside the root",
    "aten::sqrt": "keep the argument non-negative",
    "aten::acos": _INSIDE_ONE,
    "aten::asin": _INSIDE_ONE,
    "aten::atanh": _INSIDE_ONE,
    "aten::_ctc_loss": "drop samples whose target does not fit their input, or pass zero_infinity=True",
    "aten::nll_loss_forward": "skip a batch in which every label is ignored: its mean is 0 / 0",
    "aten::nll_loss2d_forward": "skip a batch in which every label is ignored: its mean is 0 / 0",
    "aten::mul": "replace the infinity before the product (x.masked_fill(torch.isinf(x), 0)): 0 * inf is NaN",
}
_EXPONENTIALS = {
    "aten::exp": (88.7, 11.1),
    "aten::expm1": (88.7, 11.1),
    "aten::exp2": (128, 16),
    "aten::sinh": (89.4, 11.8),
    "aten::cosh": (89.4, 11.8),
}
"""Op -> the argument at which its result leaves FP32, and FP16: log(3.4e38) and log(65,520), for sinh and
cosh those plus log(2)."""
_TITLE_ALONE = "undefined in forward"


def check(reading: Reading) -> Iterable[Finding]:
    """One finding per place in the forward that is undefined in every precision."""
    births = births_of(reading, _speaks)
    compared = [j for j in births if j.birth.reference == "same"]
    yield from findings_by_place(CODE, TITLE, compared, _message, _remedy)
    # FP32 has no such site, or another value there: what it does is not this rule's to say.
    others = [j for j in births if j.birth.reference != "same"]
    yield from findings_by_place(CODE, _TITLE_ALONE, others, _message, _remedy)


def _speaks(judged: JudgedBirth) -> bool:
    return judged.in_forward and judged.cause == GENUINE and not only_the_derivative(judged)


def _message(judged: JudgedBirth) -> str:
    birth = judged.birth
    what = "NaN" if birth.value == "nan" else "inf"
    op = short_op(birth.site.op) if birth.site else ""
    if leaves_domain(birth) and birth.reference != "same":
        return (
            f"{op} is given {number(birth.argument)}, by a difference of nearly equal numbers. The FP32 run, "
            f"with other rounding, is not finite either.{samples_sentence(judged)}"
        )
    where = "FP32 has it in the same place" if birth.reference == "same" else "it is so in float64 too"
    return f"{op} gives {what} on these inputs; {where}.{samples_sentence(judged)}"


def _remedy(judged: JudgedBirth) -> str:
    birth = judged.birth
    op = birth.site.op if birth.site else ""
    if leaves_domain(birth) and birth.reference != "same":
        return sentence(WITHOUT_THE_DIFFERENCE + ". Neither BF16 nor a loss scale helps")
    if op in _EXPONENTIALS:
        here = f", and it is {number(birth.argument)} here" if birth.argument is not None else ""
        fp32, fp16 = _EXPONENTIALS[op]
        return (
            f"Clamp the argument: {short_op(op)} is inf from {fp32} on in FP32, from {fp16} on in "
            f"FP16{here}. Neither BF16 nor a loss scale helps."
        )
    known = _REMEDIES.get(op)
    if known is None or (op == "aten::mul" and not any(o.infs for o in birth.operands)):  # a constant NaN
        return "Mend the formula or the data: precision is not the cause."
    return sentence(known + ". Neither BF16 nor a loss scale helps")


CODE, TITLE = "AMP102", "undefined in forward, in FP32 too"
RULE = Rule(CODE, TITLE, "error", __doc__ or "", check)

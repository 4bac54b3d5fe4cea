"""AMP202: undefined in backward, in FP32 too

What it means
    The forward is fine; its derivative is not, in any precision. sqrt, norm
    and x ** 0.5 have an infinite derivative at 0. A branch that torch.where
    does not take still gets a gradient of 0, and 0 * inf is NaN. A NaN label
    that is masked after squaring leaves 0 * NaN behind.

How it is found
    A non-finite value is born in backward, or comes from an infinity that the
    forward absorbed, and FP32 has it at the same site and elements.

What to do
    Put the eps inside: sqrt(x + eps), not sqrt(x) + eps. Select the argument
    before the function: torch.where(ok, x, 1).log(), not torch.where(ok,
    x.log(), 0). Replace missing labels before they meet the prediction:
    torch.where(seen, label, pred.detach()).

Example
    torch.where(x <= 0, torch.exp(x), 1 + x): for x = 100 the branch nobody
    takes is inf.

Sources
    pytorch/pytorch#68425 (where), #4320 and implus/PytorchInsight#32 (sqrt of
    a variance), speechbrain/speechbrain#181 (a power of 0.5),
    pytorch/pytorch#89543 (NaN labels).
"""

from __future__ import annotations

from collections.abc import Iterator

from ampdoctor.diagnose.advice import has_select
from ampdoctor.diagnose.birth_findings import births_of, findings_by_place, samples_sentence, sentence
from ampdoctor.diagnose.cause import GENUINE
from ampdoctor.diagnose.first_fault import first_fault
from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.rule import Rule
from ampdoctor.diagnose.standing import INPUT, JudgedBirth, only_the_derivative
from ampdoctor.diagnose.verdict import Reading
from ampdoctor.diagnose.wording import count_words, short_op

_ROOTS = (
    "aten::sqrt",
    "aten::pow",
    "aten::linalg_vector_norm",
    "aten::norm",
    "aten::rsqrt",
    "aten::_cdist_forward",
)
_WHERE = "select the argument before the function, torch.where(ok, x, safe) inside, not its result outside"
_BOUND = "bound the argument before the function (x.clamp), not its result after it"


def check(reading: Reading) -> Iterator[Finding]:
    """One finding per place whose derivative is undefined in every precision."""
    yield from findings_by_place(
        CODE, TITLE, births_of(reading, _speaks), _message, lambda j: _remedy(reading, j)
    )
    if reading.verdict == "backward-undefined" and reading.basis and reading.basis.standing == INPUT:
        yield from _masked_input(reading, reading.basis)


def _speaks(judged: JudgedBirth) -> bool:
    return judged.cause == GENUINE and (not judged.in_forward or only_the_derivative(judged))


def _message(judged: JudgedBirth) -> str:
    birth = judged.birth
    op = short_op(birth.site.op) if birth.site else ""
    if judged.phase == "forward":
        return (
            f"{op} gives inf, which the forward absorbs; in backward its gradient of 0 meets it, and 0 * inf "
            f"is NaN. FP32 has it too.{samples_sentence(judged)}"
        )
    of = short_op(birth.forward_op) or op
    value = "NaN" if birth.value == "nan" else "inf"
    return f"The derivative of {of} is {value} here, in FP32 too.{samples_sentence(judged)}"


def _remedy(reading: Reading, judged: JudgedBirth) -> str:
    birth = judged.birth
    selects = has_select(reading, birth)
    if judged.phase == "forward":
        return sentence(_WHERE if selects else _BOUND)
    if birth.forward_op in _ROOTS:
        return "Put an eps inside the root: sqrt(x + eps), (x + eps) ** p. Outside it does not help."
    away = "keep the argument away from the point where the derivative is infinite"
    return sentence(f"{away}; {_WHERE}" if selects else away)


def _masked_input(reading: Reading, basis: JudgedBirth) -> Iterator[Finding]:
    fault = first_fault(reading)
    if fault is None:
        return
    spoiled = count_words(len(basis.reaches_gradients), "gradient")
    yield Finding(
        code=CODE,
        severity="error",
        title=TITLE,
        module=fault.module,
        op=fault.op,
        source=fault.source,
        message=f"NaN from {fault.tensor} is masked in the loss, but what comes back is 0 * NaN: {spoiled} "
        "turn NaN, in FP32 too.",
        evidence={
            "value": "nan",
            "cause": GENUINE,
            "phase": "backward",
            "tensor": fault.tensor,
            "samples": list(fault.samples) if fault.samples else None,
            "reaches_gradients": list(basis.reaches_gradients),
        },
        tensor=fault.tensor,
        remedy="Replace missing values before they meet the prediction (torch.where on the label).",
    )


CODE, TITLE = "AMP202", "undefined in backward, in FP32 too"
RULE = Rule(CODE, TITLE, "error", __doc__ or "", check)

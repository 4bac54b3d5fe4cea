"""AMP106: a constant the format cannot hold

What it means
    A number written in the code does not exist in the low-precision format. A
    mask value of -1e9 is past the end of FP16: masked_fill raises,
    tensor.to(half) quietly makes it -inf. finfo(dtype).min is held, but
    leaves no room: adding a negative score to it gives -inf. An eps of 1e-8
    is 0.

How it is found
    By the exception and the op's argument; by a cast of a lone constant that
    becomes inf; by an operand that is exactly the format's largest value; by
    an addition of an eps whose result is zero here and not in FP32.

What to do
    Mask with torch.finfo(x.dtype).min through masked_fill (half of it where it
    is added), or hand scaled_dot_product_attention a boolean mask. -inf is for
    masks that leave something in every row.
    Add an eps in FP32, or use one the format can hold. BF16 holds -1e9 and
    1e-8. It does not help masks that follow finfo(dtype): they follow it
    there too.

Example
    scores.masked_fill(keep == 0, -1e9) under FP16 autocast: RuntimeError:
    value cannot be converted to type at::Half without overflow.

Sources
    NVIDIA/apex#1052, SegmentationBLWX/sssegmentation#83,
    huggingface/transformers#17306 and #17437 (OPT), lightonai/pylate#239 and
    implus/PytorchInsight#32 (eps).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ampdoctor.diagnose.advice import eps_remedy
from ampdoctor.diagnose.birth_findings import births_of, findings_by_place, samples_sentence
from ampdoctor.diagnose.cause import FLUSH, RANGE
from ampdoctor.diagnose.constants import is_constant_fault, is_finfo_mask, vanished_eps
from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.rule import Rule
from ampdoctor.diagnose.standing import HARMLESS, JudgedBirth
from ampdoctor.diagnose.verdict import Reading
from ampdoctor.diagnose.wording import first_line, format_name, number, short_op, source_place
from ampdoctor.facts.floats import BFLOAT16
from ampdoctor.facts.trace import Raised, ZeroOrigin

_MASK_REMEDY = (
    "Mask with torch.finfo(x.dtype).min through masked_fill, or with half of it where it is added to scores; "
    'with float("-inf") only where no row is masked throughout, since the softmax of such a row is NaN.'
)
_IN_BF16 = " BF16 holds this constant."
_FINFO_REMEDY = (
    "Use half of finfo(dtype).min, or a boolean mask with masked_fill: nothing can be added to the lowest "
    "value. BF16 is no cure: finfo follows the dtype."
)


def check(reading: Reading) -> Iterator[Finding]:
    """One finding per constant that became inf, raised, or became zero."""
    if reading.raised is not None and reading.raised.raised is not None:
        raised = reading.raised.raised
        if raised.constant is not None:
            yield _from_raised(raised, reading)
    yield from findings_by_place(CODE, TITLE, births_of(reading, _speaks), _message, _remedy)
    yield from _vanished(reading)


def _speaks(judged: JudgedBirth) -> bool:
    return judged.in_forward and judged.cause == RANGE and is_constant_fault(judged.birth)


def _message(judged: JudgedBirth) -> str:
    birth = judged.birth
    name = format_name(birth.dtype)
    if is_finfo_mask(birth):
        return (
            f"A mask of {name}'s lowest value has no room below it: the sum is {number(birth.exact_value)} "
            f"and becomes inf.{samples_sentence(judged)}"
        )
    return f"The constant {number(birth.exact_value)} does not exist in {name} and becomes inf."


def _remedy(judged: JudgedBirth) -> str:
    if is_finfo_mask(judged.birth):
        return _FINFO_REMEDY
    return _MASK_REMEDY + _bf16(judged.birth.exact_value)


def _bf16(constant: float | None) -> str:
    return "" if constant is None or abs(constant) >= BFLOAT16.overflow_at else _IN_BF16


def _from_raised(raised: Raised, reading: Reading) -> Finding:
    name = format_name(reading.trace.environment.dtype)
    return Finding(
        code=CODE,
        severity="error",
        title=TITLE,
        module=raised.module,
        op=raised.op,
        source=raised.source,
        message=f"{name} cannot hold {number(raised.constant)}, and PyTorch raises {raised.type}: "
        f"{first_line(raised.message)}",
        evidence={"constant": raised.constant, "exception": raised.type, "message": raised.message},
        remedy=_MASK_REMEDY + _bf16(raised.constant),
    )


def _vanished(reading: Reading) -> Iterable[Finding]:
    """The eps behind a flush: named at its own line, once, with what it failed to guard."""
    groups: dict[tuple[str, str], list[tuple[JudgedBirth, ZeroOrigin]]] = {}
    for j in births_of(reading, lambda j: j.cause == FLUSH):
        eps = vanished_eps(j.birth, reading.fmt)
        if eps is not None:
            groups.setdefault((eps.site.module, source_place(eps.source)), []).append((j, eps))
    for group in groups.values():
        j, eps = group[0]
        guarded = short_op(j.birth.site.op) if j.birth.site else "an op"
        value = "NaN" if j.birth.value == "nan" else "inf"
        yield Finding(
            code=CODE,
            severity="info" if all(j.standing == HARMLESS for j, _ in group) else "error",
            title=TITLE,
            module=eps.site.module,
            op=eps.site.op,
            source=eps.source,
            message=f"The eps {number(eps.constant)} is 0 in {reading.fmt_name}, which keeps nothing at or "
            f"below {number(reading.fmt.flush_at)}: {guarded} gives {value}.",
            evidence={
                "constant": eps.constant,
                "zeros": eps.zeros,
                "flush_at": reading.fmt.flush_at,
            },
            remedy=eps_remedy(reading, j.birth),
            count=len(group),
        )


CODE, TITLE = "AMP106", "a constant the format cannot hold"
RULE = Rule(CODE, TITLE, "error", __doc__ or "", check)

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
    Mask with float("-inf") through masked_fill or torch.where, or with half
    of finfo(dtype).min, or hand scaled_dot_product_attention a boolean mask.
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

from ampdoctor.diagnose.birth_findings import births_of, findings_by_place, samples_sentence
from ampdoctor.diagnose.cause import FLUSH, RANGE
from ampdoctor.diagnose.constants import is_constant_fault, is_finfo_mask, is_vanished_eps, root_of
from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.rule import Rule
from ampdoctor.diagnose.standing import HARMLESS, JudgedBirth
from ampdoctor.diagnose.verdict import Reading
from ampdoctor.diagnose.wording import first_line, format_name, number, source_place
from ampdoctor.facts.trace import Raised

_MASK_REMEDY = (
    'Mask with float("-inf") through masked_fill or torch.where, or with finfo(dtype).min / 2; '
    "BF16 holds this constant."
)
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
    return _FINFO_REMEDY if is_finfo_mask(judged.birth) else _MASK_REMEDY


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
        remedy=_MASK_REMEDY,
    )


def _vanished(reading: Reading) -> Iterable[Finding]:
    """The eps behind a flush: named at its own line, beside the division it failed to guard."""
    seen: set[tuple[str, str]] = set()
    for j in births_of(reading, lambda j: j.cause == FLUSH and is_vanished_eps(j.birth, reading.fmt)):
        root = root_of(j.birth)
        if root is None or (key := (root.site.module, source_place(root.source))) in seen:
            continue
        seen.add(key)
        yield Finding(
            code=CODE,
            severity="info" if j.standing == HARMLESS else "error",
            title=TITLE,
            module=root.site.module,
            op=root.site.op,
            source=root.source,
            message=f"The eps {number(root.constant)} is 0 in {reading.fmt_name}, which keeps nothing at or "
            f"below {number(reading.fmt.flush_at)}.",
            evidence={
                "constant": root.constant,
                "zeros": root.zeros,
                "flush_at": reading.fmt.flush_at,
            },
            remedy="Add the eps in FP32, or use one the format can hold (1e-4 and more is safe in FP16).",
        )


CODE, TITLE = "AMP106", "a constant the format cannot hold"
RULE = Rule(CODE, TITLE, "error", __doc__ or "", check)

"""AMP303: optimizer eps flushed

What it means
    The eps that an optimizer adds to a denominator is too small for the
    format of the weights: Adam's 1e-8 is 0 in FP16, which ends at 6e-8. The
    square of a small gradient is 0 there too, so the step divides by 0 and
    makes weights inf or NaN. Forward and backward of the first step are
    perfect; from the second on everything is NaN.

How it is found
    The eps of the optimizer against the format of each parameter, and 25
    steps on a copy. An error where one destroys weights that FP32 keeps
    finite; a warning where none did.

What to do
    Keep the weights in FP32 and use torch.autocast: the optimizer's state is
    then FP32 as well. An eps of 1e-4 holds in FP16, but makes Adam another
    optimizer.

Example
    model.half() and torch.optim.Adam(model.parameters(), lr=1e-3): the first
    step leaves inf and NaN.

Sources
    pytorch/pytorch#8860, nerfstudio-project/nerfstudio#134, matanbt/TROPT#8.
"""

from __future__ import annotations

from collections.abc import Iterable

from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.rule import Rule
from ampdoctor.diagnose.updates import destroying_step, eps_vanishes, module_of
from ampdoctor.diagnose.verdict import Reading
from ampdoctor.diagnose.wording import count_words, format_name, listing, number, short_op
from ampdoctor.facts.floats import FLOAT_FORMATS
from ampdoctor.facts.trace import OptimizerStep
from ampdoctor.facts.updates import ParameterUpdate


def check(reading: Reading) -> Iterable[Finding]:
    """One finding for the optimizer: its eps, and the weights that the missing eps destroyed."""
    step = reading.trace.optimizer_step
    flushed = [u for u in step.updates if eps_vanishes(u)] if step is not None else []
    if step is None or not flushed:
        return ()
    broken = [u for u in flushed if u.nan or u.inf]
    op = step.birth.site.op if broken and step.birth and step.birth.site else None
    return (
        Finding(
            code=CODE,
            severity="error" if broken else "warning",
            title=TITLE,
            module=module_of(broken),
            op=op or "",
            source=(step.birth.line if op and step.birth else None) or step.source,
            message=_message(step, flushed, broken),
            evidence={
                "optimizer": step.optimizer,
                "eps": flushed[0].eps,
                "smallest": FLOAT_FORMATS[flushed[0].dtype].min_subnormal,
                "parameters": [u.name for u in flushed],
                "non_finite": {u.name: u.nan + u.inf for u in broken},
                "op": op,
            },
            remedy="Keep the weights in FP32 and use torch.autocast; or take an eps that FP16 holds: 1e-4.",
        ),
    )


def _message(step: OptimizerStep, flushed: list[ParameterUpdate], broken: list[ParameterUpdate]) -> str:
    fmt = FLOAT_FORMATS[flushed[0].dtype]
    eps = (
        f"{step.optimizer}'s eps of {number(flushed[0].eps)} is 0 in {format_name(fmt.name)}, whose smallest "
        f"number is {number(fmt.min_subnormal)}."
    )
    if not broken:
        return f"{eps} A weight whose gradient is small will be divided by 0."
    elements = sum(u.nan + u.inf for u in broken)
    by = f" in {short_op(step.birth.site.op)}" if step.birth and step.birth.site else ""
    return (
        f"{eps} {destroying_step(step)} divides by 0{by} and leaves "
        f"{count_words(elements, 'weight element')} non-finite, in {listing([u.name for u in broken])}."
    )


CODE, TITLE = "AMP303", "optimizer eps flushed"
RULE = Rule(CODE, TITLE, "error", __doc__ or "", check)

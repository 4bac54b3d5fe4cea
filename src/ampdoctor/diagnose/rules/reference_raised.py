"""AMP906: the model as written does not run in FP32

What it means
    The FP32 pass, which everything is compared with, raised where the low
    precision runs. Mostly a cast in the model's own code (.half(), a buffer
    made in float16) meets FP32 weights, which autocast would have matched.

How it is found
    The pass is run again with the model's casts to 16 bits widened to FP32.
    Where that runs, it is the reference (info). Where it does not, nothing is
    compared with FP32, and no sentence of the report speaks of it (warning).

What to do
    Write the cast so that it follows its surroundings: x.to(weight.dtype)
    instead of x.half(). A model that runs in FP32 can be compared with it.
"""

from __future__ import annotations

from collections.abc import Iterator

from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.rule import Rule
from ampdoctor.diagnose.verdict import Reading
from ampdoctor.diagnose.wording import first_line, place, short_op
from ampdoctor.facts.trace import Raised


def check(reading: Reading) -> Iterator[Finding]:
    """One finding per exception of an FP32 pass where the low-precision pass of that batch ran."""
    seen = set()
    failed = {p.batch for p in reading.trace.passes if p.role == "candidate" and p.raised is not None}
    for p in reading.trace.passes:
        raised = p.raised or p.raised_as_written
        if p.role != "reference" or raised is None or p.batch in failed:
            continue
        if (raised.type, raised.source) not in seen:
            seen.add((raised.type, raised.source))
            yield _finding(raised, widened=p.raised is None)


def _finding(raised: Raised, widened: bool) -> Finding:
    op = f"{short_op(raised.op)} in " if raised.op else ""
    what = f"{op}{place(raised.module)} raises in FP32: {raised.type}: {first_line(raised.message)}."
    compared = (
        "FP32 was run with the model's own casts to 16 bits widened."
        if widened
        else "Nothing here is compared with FP32."
    )
    return Finding(
        code=CODE,
        severity="info" if widened else "warning",
        title=TITLE,
        module=raised.module,
        op=raised.op,
        source=raised.source,
        message=f"{what} {compared}",
        evidence={
            "exception": raised.type,
            "message": raised.message,
            "phase": raised.phase,
            "widened": widened,
        },
        remedy=(
            "Let the cast before this line follow what it meets: x.to(weight.dtype) instead of x.half()."
            if widened or "type" in raised.message
            else "Mend this first: it stops the model in FP32 as well as a comparison with it."
        ),
    )


CODE, TITLE = "AMP906", "the model as written does not run in FP32"
RULE = Rule(CODE, TITLE, "warning", __doc__ or "", check)

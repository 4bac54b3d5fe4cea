"""AMP108: finite and wrong from one op on

What it means
    Nothing overflows, nothing becomes zero, no NaN appears, and the numbers
    are wrong: from one op of the forward on they are far from what FP32 has,
    at every loss scale. Its inputs still agree with FP32; its output does
    not. The run trains, and learns something else.

How it is found
    The loss, the outputs, a gradient or a buffer is more than 20 % off FP32.
    Both passes are then run again with a sample of every tensor kept, and the
    error is followed back from the end to the op at which it appears: there
    it grows eightfold or more in one step, instead of adding up over many;
    of many additions on one line the last is named where the terms agree. An
    op that picks or draws (topk, where, dropout) is no fault: one rounding
    turns a choice over.

What to do
    sin and cos of large numbers: FP16 keeps 11 bits, so that from 2,048 on
    even whole numbers are rounded; compute the argument in FP32, or reduce it
    first. A difference of nearly equal numbers: compute it in FP32, or write
    the formula without it. A long sum: sum in FP32. A cast of a weight that
    is out of date: autocast casts each weight once per region and serves that
    cast until the region ends; close the region where the weight changes, or
    call torch.clear_autocast_cache().

Example
    torch.cos(pos * 1.37) in half with pos near 4,000: the argument is
    rounded to multiples of 4, more than half a turn.

Sources
    X-GenGroup/Flow-Factory#186 (weights swapped inside an autocast region);
    PyTorch's AMP notes on the cache of casts.
"""

from __future__ import annotations

from collections.abc import Iterable

from ampdoctor.diagnose.amounts import off_reference
from ampdoctor.diagnose.drift import DriftReading, outcome_words
from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.rule import Rule
from ampdoctor.diagnose.verdict import Reading
from ampdoctor.diagnose.wording import format_name, number, percent, short_op, source_place
from ampdoctor.facts.drift import Drift


def check(reading: Reading) -> Iterable[Finding]:
    """One finding for the op where the worst batch parts from FP32."""
    drift = reading.drift
    if drift is None:
        return
    at = drift.begins
    if at is None or not drift.is_forward:
        if not drift.gradients:  # else AMP206 speaks
            yield _everywhere(drift, reading)
        return
    source = at.changed_at or at.source
    yield Finding(
        code=CODE,
        severity="error",
        title=TITLE,
        module=at.site.module,
        op=at.site.op,
        source=source,
        message=f"{_what(at, reading)} {outcome_words(drift)}",
        evidence={
            "kind": at.kind,
            "batch": at.batch,
            "relative_error": {"output": at.error},
            "input_error": at.input_error,
            "largest_input": at.largest_input,
            "weight": at.weight or None,
            "loss_error": drift.loss_error,
            "output_error": drift.output_error,
            "gradient_errors": {p.name: p.relative_error for p in drift.gradients},
            "buffer_errors": {b.name: b.relative_error for b in drift.buffers},
        },
        amounts=off_reference([at.error]),
        remedy=_remedy(at, reading),
    )


def _everywhere(drift: DriftReading, reading: Reading) -> Finding:
    name = format_name(reading.fmt.name)
    return Finding(
        code=CODE,
        severity="error",
        title=TITLE,
        module="",
        op="",
        source=None,
        message=f"{outcome_words(drift)} It adds up over many ops; none stands out.",
        evidence={
            "batch": drift.batch,
            "loss_error": drift.loss_error,
            "output_error": drift.output_error,
            "buffer_errors": {b.name: b.relative_error for b in drift.buffers},
        },
        amounts=off_reference(
            [drift.output_error, drift.loss_error, *(b.relative_error for b in drift.buffers)]
        ),
        whole_scan=True,
        remedy=f"Run more of the model in FP32, or ask whether it is stable enough for {name} at all.",
    )


def _what(at: Drift, reading: Reading) -> str:
    op = short_op(at.site.op)
    inputs = "its inputs agree" if at.input_error is None else f"its inputs to {percent(at.input_error)}"
    start = f"The output of {op} is off by {percent(at.error)}, {inputs}."
    if at.kind == "stale-cast":
        line = source_place(at.source)
        return (
            f"{op} at {line} is given a cast of {at.weight} from before the weight was changed here: "
            f"autocast serves one cast until its region ends. Its output is off by {percent(at.error)}."
        )
    if at.kind == "large-argument":
        return (
            f"{start} Its argument goes up to {number(at.largest_input)}, where {reading.fmt_name} is coarse."
        )
    if at.kind == "running-sum":
        before = percent(at.input_error)
        return (
            f"Many additions on one line add up to an error: the first is off by {before}, the last by "
            f"{percent(at.error)}, and the terms agree. {reading.fmt_name} drops what is small beside the "
            "sum."
        )
    if at.kind == "difference":
        return f"{start} Numbers of up to {number(at.largest_input)} nearly cancel."
    return start


def _remedy(at: Drift, reading: Reading) -> str:
    name = format_name(reading.fmt.name)
    match at.kind:
        case "stale-cast":
            return (
                "End the autocast region before the weight changes and open a new one after it, or call "
                "torch.clear_autocast_cache() there."
            )
        case "large-argument":
            return (
                "Compute the argument in FP32 from the start (not .float() on a rounded one), or reduce it "
                "to one period first. BF16 is coarser still."
            )
        case "difference":
            return f"Take this difference in FP32, of operands that were not rounded to {name} before."
        case "running-sum":
            return (
                "Keep this running sum in FP32 (.float() on it before the loop), or stack the terms and "
                "sum(dtype=torch.float32)."
            )
        case "long-sum":
            return "Sum in FP32 (sum(dtype=torch.float32))."
        case _:
            return f"Keep this op and what it is given in FP32; its result may be rounded to {name}."


CODE, TITLE = "AMP108", "finite and wrong from one op on"
RULE = Rule(CODE, TITLE, "error", __doc__ or "", check)

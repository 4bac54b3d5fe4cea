"""AMP204: no workable loss scale

What it means
    A gradient leaves the format's range even at loss scale 1. Lowering the
    scale below 1 would push the other gradients under the format's floor, and
    below 3e-39 GradScaler's own 1/scale is inf. Usually a local derivative is
    too large for the format (num / den^2 with a small den), or one loss term
    is many times the others.

    Or two parts of the model pull apart: where the gradients of one stop
    overflowing, those of the other have already become zero.

How it is found
    Backward runs at scale 1; the op on the same inputs in float64 is finite,
    so it is a matter of range. For two parts that pull apart: the highest
    scale without overflow is run, and there a parameter still loses more than
    a fifth of its gradient. Then what may help is run on every batch: BF16;
    FP32 for the layer that overflows, or for what is around it; a scale of
    its own for the tower whose gradient is lost, or for a layer in it. What
    worked is the advice.

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

from ampdoctor.diagnose.advice import keep_in_fp32
from ampdoctor.diagnose.amounts import Amounts
from ampdoctor.diagnose.birth_findings import (
    births_of,
    findings_by_place,
    overflow_words,
    sentence,
)
from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.rule import Rule
from ampdoctor.diagnose.standing import JudgedBirth
from ampdoctor.diagnose.verdict import Reading, overflows_even_at_1
from ampdoctor.diagnose.wording import place, scale, short_op, source_place
from ampdoctor.facts.alternatives import AlternativeRun
from ampdoctor.facts.site import Source
from ampdoctor.scales.reading import ScaleReading

_DIVISIONS = ("aten::div", "aten::reciprocal", "aten::rsqrt")


def check(reading: Reading) -> Iterable[Finding]:
    """One finding per place in the backward that overflows even at the lowest scale."""
    births = births_of(reading, overflows_even_at_1)
    yield from findings_by_place(CODE, TITLE, births, _message, lambda j: _remedy(reading, j))
    scales = reading.scales
    if reading.verdict == "no-workable-scale" and not births and scales is not None:
        yield from _pulled_apart(scales)


def _pulled_apart(scales: ScaleReading) -> Iterable[Finding]:
    """One part overflows where another still loses gradient."""
    high, low, ceiling = scales.high_limit, scales.low_limit, scales.ceiling
    if high is None or low is None or ceiling is None:
        return
    helps = [_help(a.run) for a in scales.alternatives if a.run is not None and a.run.works]
    yield Finding(
        code=CODE,
        severity="error",
        title=TITLE,
        module=high.site.module,
        op=high.site.op,
        source=high.source,
        message=(
            f"Above scale {scale(2.0**ceiling)} the backward of {place(high.site.module)} overflows; there "
            f"the backward of {place(low.site.module)}{_at(low.source)} still loses gradient that matters."
        ),
        evidence={
            "ceiling": 2.0**ceiling,
            "overflows": {"module": high.site.module, "op": high.site.op},
            "underflows": {"module": low.site.module, "op": low.site.op, "line": source_place(low.source)},
        },
        amounts=Amounts(f"overflow above {scale(2.0**ceiling)}"),
        remedy=sentence("; or ".join(helps) or _SEARCH),
    )


def _at(source: Source | None) -> str:
    return f" ({source_place(source)})" if source else ""


_SEARCH = (
    "one change at one place was run and does not cure it: `ampdoctor prescribe` searches for several, such "
    "as a loss scale per part"
)


def _help(run: AlternativeRun) -> str:
    """A change that was run and works."""
    if run.kind == "bfloat16":
        return "train in BF16"
    if run.kind == "module-in-fp32":
        return f"keep {run.module} in FP32, with loss scale {scale(run.loss_scale)}"
    assert run.factor is not None
    return (
        f"give {run.module} a loss scale of its own, {scale(run.factor)} times a loss scale of "
        f"{scale(run.loss_scale)} (`ampdoctor prescribe --show code`)"
    )


def _message(judged: JudgedBirth) -> str:
    birth = judged.birth
    of = f"of {short_op(birth.forward_op)} " if birth.forward_op else ""
    return f"The backward {of}overflows even at scale {scale(birth.loss_scale)}. {overflow_words(judged)}"


def _remedy(reading: Reading, judged: JudgedBirth) -> str:
    """What was run and works, then what no run can show: another formula."""
    birth, runs = judged.birth, reading.trace.alternatives
    in_fp32 = [run for run in runs if run.kind == "module-in-fp32"]
    works = [run for run in runs if run.works]
    advice = [_help(run) for run in works if run.kind != "bfloat16"]
    if not in_fp32 or any(run.works and birth.site and run.module == birth.site.module for run in in_fp32):
        apart = [_help(run) for run in works if run.kind == "module-scaled-apart"]
        at = [f", with loss scale {scale(run.loss_scale)}" for run in in_fp32 if run.works]
        advice = [keep_in_fp32(reading, judged) + "".join(at[:1]), *apart]
    divides = birth.forward_op in _DIVISIONS
    advice.append("raise the eps in the divisor (1e-3 in FP16)" if divides else "scale this loss term down")
    if birth.dtype == "float16" and not any(run.kind == "bfloat16" and not run.works for run in runs):
        advice.append("train in BF16")
    return sentence("; or ".join(advice))


CODE, TITLE = "AMP204", "no workable loss scale"
RULE = Rule(CODE, TITLE, "error", __doc__ or "", check)

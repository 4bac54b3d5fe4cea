"""Findings about births: which births a rule speaks of, one finding per place, evidence in numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ampdoctor.diagnose.amounts import Amounts, bad_elements, past_the_end
from ampdoctor.diagnose.cause import RANGE
from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.standing import FAULT, HARMLESS, SILENT, JudgedBirth, in_order
from ampdoctor.diagnose.verdict import Reading
from ampdoctor.diagnose.wording import (
    count_words,
    format_name,
    listing,
    number,
    place,
    sample_words,
    short_op,
)
from ampdoctor.facts.floats import FLOAT_FORMATS
from ampdoctor.facts.words import Severity

Speaks = Callable[[JudgedBirth], bool]
Words = Callable[[JudgedBirth], str]


def births_of(reading: Reading, speaks: Speaks) -> list[JudgedBirth]:
    """The births a finding may be about, those the rule speaks of, as they happened."""
    reported = [j for j in reading.births if j.standing in (FAULT, SILENT, HARMLESS)]
    return [j for j in in_order(reported) if speaks(j)]


def findings_by_place(
    code: str,
    title: str,
    births: Iterable[JudgedBirth],
    message: Words,
    remedy: Words,
    severity: Severity = "error",
) -> Iterator[Finding]:
    """One finding per module, op and source line; faults weigh ``severity``, harmless births nothing."""
    groups: dict[tuple[str, ...], list[JudgedBirth]] = {}
    for j in births:
        site, source = j.birth.site, j.birth.line
        harmless = "harmless" if j.standing == HARMLESS else ""
        line = f"{source.file}:{source.line}" if source else ""
        key = (harmless, site.module if site else "", site.op if site else "", line)
        groups.setdefault(key, []).append(j)
    for group in groups.values():
        first = group[0]
        site = first.birth.site
        again = f" It happens {len(group):,} times here{_worse(group)}." if len(group) > 1 else ""
        yield Finding(
            code=code,
            severity="info" if first.standing == HARMLESS else severity,
            title=f"{title}, absorbed" if first.standing == HARMLESS else title,
            module=site.module if site else "",
            op=site.op if site else "",
            source=first.birth.line,
            message=message(first) + again + _outcome(first),
            evidence=_evidence(group),
            amounts=_amounts(group),
            remedy=remedy(first),
            count=len(group),
        )


def _furthest(group: list[JudgedBirth]) -> float | None:
    """The largest exact value of those births that compare with the first: of its cause, format and scale."""
    first = group[0]
    sizes = [
        abs(j.birth.exact_value)
        for j in group
        if j.birth.exact_value is not None
        and (j.cause, j.birth.dtype, j.birth.loss_scale)
        == (first.cause, first.birth.dtype, first.birth.loss_scale)
    ]
    return max((size for size in sizes if math.isfinite(size)), default=None)


def _worse(group: list[JudgedBirth]) -> str:
    """``, at worst with 240,000`` where a later birth lies further out of range than the first."""
    exact, furthest = group[0].birth.exact_value, _furthest(group)
    if group[0].cause != RANGE or exact is None or furthest is None or furthest <= abs(exact):
        return ""
    return f", at worst with {number(furthest)}"


def _outcome(judged: JudgedBirth) -> str:
    """What became of it, where it is not simply the loss or a gradient that turns bad."""
    if judged.spoils_buffers and not (judged.reaches_loss or judged.reaches_gradients):
        where = f"{count_words(len(judged.spoils_buffers), 'buffer')} ({listing(judged.spoils_buffers, 2)})"
        return f" Loss and gradients of this step are finite; it stays in {where}, read by the next step."
    taken_in = judged.birth.absorbed_at
    by = f" by {short_op(taken_in.op)} ({place(taken_in.module)})" if taken_in else ""
    if judged.standing == HARMLESS:
        agrees = ", and loss and gradients agree with FP32's" if judged.outcome_agrees else ""
        return f" It is absorbed{by}{agrees}."
    if judged.standing == SILENT:
        return f" It is absorbed{by}, so nothing turns NaN, but the outcome is wrong."
    return ""


def _amounts(group: list[JudgedBirth]) -> Amounts:
    """What the first weighs; how far out of range the furthest of them lies."""
    birth = group[0].birth
    bad = bad_elements(birth.value, birth.count, math.prod(birth.shape))
    fmt = FLOAT_FORMATS.get(birth.dtype)
    if fmt is None or group[0].cause != RANGE:
        return bad
    known = (_furthest(group), birth.exact_value, birth.reference_value)
    past = next((v for v in known if v is not None and math.isfinite(v) and abs(v) > fmt.max), None)
    return bad if past is None else past_the_end(fmt.max, past, bad.share)


def _evidence(group: list[JudgedBirth]) -> dict[str, Any]:
    birth = group[0].birth
    fmt = FLOAT_FORMATS.get(birth.dtype)
    samples = sorted({s for j in group for s in j.birth.samples or ()})
    return {
        "value": birth.value,
        "cause": group[0].cause,
        "phase": group[0].phase,
        "dtype": birth.dtype,
        "exact_value": birth.exact_value,
        "furthest_value": _furthest(group),
        "reference_value": birth.reference_value,
        "largest": fmt.max if fmt else None,
        "count": birth.count,
        "numel": math.prod(birth.shape),
        "index": list(birth.index),
        "batches": sorted({j.birth.batch for j in group}),
        "samples": samples or None,
        "loss_scale": birth.loss_scale,
        "reaches_loss": group[0].reaches_loss,
        "reaches_gradients": list(group[0].reaches_gradients),
        "spoils_buffers": list(group[0].spoils_buffers),
    }


# ---------------------------------------------------------------- sentences that several rules use

WITHOUT_THE_DIFFERENCE = (
    "use a form that needs no difference of nearly equal numbers, or take the difference in float64; a clamp "
    "to zero before the op stops the NaN, not the loss of digits"
)


def overflow_words(judged: JudgedBirth) -> str:
    """``Exactly 66,246, where FP16 ends at 65,504; only sample 2 of 8 does this.``"""
    birth = judged.birth
    name = format_name(birth.dtype)
    fmt = FLOAT_FORMATS.get(birth.dtype)
    end = f"{name} ends at {number(fmt.max)}" if fmt else f"{name} has no such number"
    if fmt is not None and birth.exact_value is not None and abs(birth.exact_value) < fmt.overflow_at:
        loudest = max((o.absmax or 0.0 for o in birth.operands), default=0.0)
        start = f"An operand of {number(loudest)} is rounded to {name} before the op, and {end}."
    elif birth.exact_value is not None and birth.name:
        start = f"{birth.name} holds {number(birth.exact_value)}; {end}."
    elif birth.exact_value is not None:
        start = f"The exact value is {number(birth.exact_value)}; {end}."
    elif birth.reference_value is not None and birth.site is not None:
        start = f"FP32 has {number(birth.reference_value)} here; {end}."
    else:
        start = f"The value leaves the range: {end}."
    return start + samples_sentence(judged)


def samples_sentence(judged: JudgedBirth) -> str:
    """`` Only sample 2 of 8 does this.`` where some samples do and others do not; else ''."""
    birth = judged.birth
    total = birth.shape[0] if birth.shape else 0
    if not birth.samples or len(birth.samples) >= total:
        return ""
    verb = "does" if len(birth.samples) == 1 else "do"
    return f" Only {sample_words(birth.samples)} of {total:,} {verb} this."


def sentence(words: str) -> str:
    """The words with a capital and a full stop."""
    return words[:1].upper() + words[1:].rstrip(".") + "."

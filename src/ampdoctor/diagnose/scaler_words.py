"""The scaler's report in words: the sentence on top, what to do, and what the run could not show."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ampdoctor.diagnose.headline import Headline
from ampdoctor.diagnose.scaler_report import ScalerReport
from ampdoctor.diagnose.wording import count_words, listing, scale
from ampdoctor.scales.powers_of_two import HIGHEST

_SHORT_INTERVAL = 20
"""A growth interval that shows the scale grow in a run of a few hundred steps."""


def sentence_of(report: ScalerReport) -> Headline:
    """The outcome in a sentence or two."""
    run = report.run
    start, steps = scale(run.settings.init_scale), count_words(len(run.steps), "step")
    match report.outcome:
        case "refused":
            return Headline("REFUSED.", f"torch's GradScaler does not take these gradients: {run.refusal}")
        case "breaks-weights":
            step = run.steps[-1].step
            return Headline(
                f"WEIGHTS BROKEN in step {step}.",
                f"GradScaler let it through, and it left {listing(run.broken_weights)} non-finite.",
            )
        case "diverges":
            return Headline("DIVERGES, and so does FP32.", _divergence(report))
        case "collapses" if report.hopeless == len(run.steps):
            return Headline(
                "COLLAPSES.",
                f"No loss scale makes any of {steps} finite: {start} became "
                f"{scale(run.final_scale)}, and nothing was learned.",
            )
        case "collapses":
            return Headline(
                "COLLAPSES.",
                f"{report.hopeless:,} of {steps} are not finite at any loss scale, and each "
                f"lowers it: {start} became {scale(run.final_scale)}.",
            )
        case "still-falling":
            return Headline(
                "STILL FALLING.", f"{_skipped(report)}, and the scale is at {scale(run.final_scale)}."
            )
        case "settles-below-1":
            return Headline(
                f"SETTLES BELOW 1, at {scale(report.level or 0.0)}.",
                "No loss scale of 1 or more works, and "
                "below 1 gradients become zero that the format could hold.",
            )
        case "settles":
            return Headline(f"SETTLES at {scale(report.level or 0.0)}.", f"{_skipped(report)}.")
        case "steady":
            return Headline(f"STEADY at {start}.", f"None of {steps} is skipped{_room(report)}.")
        case "rising":
            return Headline(
                "RISING.",
                f"None of {steps} is skipped, and the scale grows from {start} to {scale(run.final_scale)}.",
            )
        case _:
            return Headline("NOT MEASURED.", "The run ended before its first step did.")


def _divergence(report: ScalerReport) -> str:
    """From which step on nothing is finite, here and in FP32."""
    run, first = report.run, first_failure(report)
    beside = run.beside
    what = "its weights are not finite" if first is None else "no loss scale makes its steps finite"
    since = run.steps[-1].step if first is None else first
    at = beside.diverges_at if beside is not None else None
    return (
        f"From step {since} on {what}. The same steps in FP32 are not finite from step {at} on: no matter of "
        "precision."
    )


def first_failure(report: ScalerReport) -> int | None:
    """The first step that no loss scale of 1 or more makes finite; None where there is none."""
    return next((s.step for s in report.run.steps if s.ceiling is None or s.ceiling < 0), None)


def _look_into(report: ScalerReport, step: int) -> str:
    """``the command that scans a step as it is then``"""
    if not report.command:
        return "`ampdoctor scan`"
    return f"`{report.command} --after-steps {step}`"


def _skipped(report: ScalerReport) -> str:
    """``9 of 200 steps are skipped on the way down from 65,536, 2 later``"""
    steps = count_words(len(report.run.steps), "step")
    start = scale(report.run.settings.init_scale)
    if not report.at_start:
        return f"{report.later:,} of {steps} {_are(report.later)} skipped along the way"
    later = f", {report.later:,} later" if report.later else ""
    early = f"{report.at_start:,} of {steps} {_are(report.at_start)} skipped"
    first = next((s.scale for s in report.run.steps if not s.skipped), None)
    grown = first is not None and report.level is not None and first < report.level
    bottom = f" to {scale(first)}, from where it grows" if first is not None and grown else ""
    return f"{early} on the way down from {start}{bottom}{later}"


def _are(n: int) -> str:
    return "is" if n == 1 else "are"


def _room(report: ScalerReport) -> str:
    if report.ceiling is None:
        return ""  # no step at all
    if report.ceiling >= HIGHEST:
        return f"; even {scale(2.0**HIGHEST)} would not overflow"
    return f"; up to {scale(2.0**report.ceiling)} none would be"


def remedy_of(report: ScalerReport) -> str:
    """What to do; '' where nothing needs doing."""
    outcome, run = report.outcome, report.run
    if outcome == "refused":
        if report.findings:
            return report.findings[0].remedy
        return "BF16 has FP32's exponents and needs no loss scale: leave GradScaler out."
    first = first_failure(report)
    if outcome == "diverges":
        step = run.steps[-1].step if first is None else first
        return (
            "Lower the learning rate, warm it up, or clip the gradients' norm. "
            f"{_look_into(report, step)} shows the step as it is then."
        )
    if outcome == "breaks-weights":
        step = run.steps[-1].step
        return f"{_look_into(report, step)} takes the optimizer's step apart (AMP301, AMP303)."
    if outcome == "collapses" and first is not None:
        which = f": {only}" if (only := _only_of(report)) else ""
        return (
            f"No loss scale cures this fault{which}. {_look_into(report, first)} scans step {first} as it is "
            "then, and names what does."
        )
    if outcome == "settles-below-1" and first is not None:
        return (
            f"{_look_into(report, first)} names what overflows at scale 1 and what would help. Or train in "
            "BF16."
        )
    if outcome == "still-falling" and report.ceiling is not None:
        start = _start_at(math.ldexp(1.0, report.ceiling))
        return f"Give it more --steps, or start where it will end: {start}."
    if outcome in ("settles", "steady", "rising") and report.hopeless:
        step = next(s.step for s in run.steps if s.ceiling is None)
        which = f", {only}" if (only := _only_of(report)) else ""
        return (
            f"{count_words(report.hopeless, 'step')} not finite at any scale{which}: "
            f"{_look_into(report, step)} scans step {step} as it is then."
        )
    if outcome == "settles" and report.at_start and report.level:
        level = min(report.level, _no_higher_at_start(report))
        if level < report.level:
            return f"Start at {scale(level)}, and no step is wasted on the way down: {_start_at(level)}."
        return f"Start there, and no step is wasted: {_start_at(level)}."
    if outcome == "settles":
        return "Nothing to do: a skipped step now and then is how a scaler finds the edge."
    return ""


def _only_of(report: ScalerReport) -> str:
    """``only batch 5, in FP32 too``; '' where they are of all batches, and FP32 is finite."""
    run = report.run
    steps = [s for s in run.steps if s.ceiling is None]
    batches = sorted({s.batch for s in steps})
    some = 0 < len(batches) < run.environment.batches
    words = [f"only {'batch' if len(batches) == 1 else 'batches'} {listing(batches)}"] if some else []
    if run.beside is not None and all(run.beside.fails_at(s.step) for s in steps):
        words.append("in FP32 too")
    return ", ".join(words)


def _no_higher_at_start(report: ScalerReport) -> float:
    """The highest scale at which no step up to the first one taken would have been skipped.

    The level may be above it: reached by growth, or borne by the later steps only.
    """
    early = report.run.steps[: report.at_start + 1]
    return min([early[-1].scale, *(math.ldexp(1.0, s.ceiling) for s in early if s.ceiling is not None)])


def _start_at(level: float) -> str:
    value = f"2.0**{int(math.log2(level))}" if math.frexp(level)[0] == 0.5 else f"{level:g}"
    return f"torch.amp.GradScaler(init_scale={value})"


def notes_of(report: ScalerReport) -> Iterator[str]:
    """What the numbers leave out, a sentence each."""
    run = report.run
    environment, interval, steps = run.environment, run.settings.growth_interval, len(run.steps)
    if run.interrupted:
        yield f"Interrupted after {count_words(steps, 'step')} of {run.requested:,}."
    if "bfloat16" in (environment.dtype, *run.parameter_dtypes):
        note = "BF16 has FP32's exponents: it needs no loss scale and no GradScaler"
        if "bfloat16" in run.parameter_dtypes:
            note += "; some versions refuse BF16 gradients on CUDA"
        yield note + "."
    if steps and steps <= interval and report.outcome in ("settles", "steady", "settles-below-1"):
        yield (
            f"The scale grows after {interval:,} steps without overflow, which {steps:,} steps do not show: "
            f"--growth-interval {_SHORT_INTERVAL} does."
        )
    if steps > 1 and environment.batches == 1:
        yield "Every step saw the same batch; `data: {batches: 8}` takes more, where there are more."
    if len(report.replays) > 1:
        yield "The policies are replayed on torch's thresholds; they would have taken other steps."
    if environment.emulates:
        yield "Not seen: real GPU kernels (AMP901)."

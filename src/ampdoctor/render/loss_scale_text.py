"""The report's lines on loss scales."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group

from ampdoctor.diagnose.report import LossScale, Report
from ampdoctor.diagnose.wording import percent, place, power, scale, settling_words, short_op
from ampdoctor.facts.words import NotSearched
from ampdoctor.render.words import words

_IN_FORWARD = ("forward-overflow", "forward-underflow", "forward-undefined", "bad-input", "raises")


_NOT_SEARCHED: dict[NotSearched, str] = {
    "interrupted": "the scan was interrupted",
    "raised": "the model raised",
    "no-gradients": "there are no gradients",
    "fault-at-every-scale": "every scale has the fault",
    "all-zero": "every gradient is zero, in FP32 too",
    "no-scale-needed": "there is no scaler, and no parameter needs one",
    "nothing-rounds": "no gradient is of low precision",
    "not-asked": "not asked for",
}


def loss_scale_section(report: Report) -> Group:
    """What was configured, what works, what limits it, and whether that was run."""
    loss_scale = report.loss_scale
    lines = [words(f"{configured_words(loss_scale)}   {judgement(report)}")]
    lines += [words(f"scaler     {line}") for line in settling_lines(loss_scale)]
    if window := window_parts(loss_scale):
        lines.append(words(f"works      {'   '.join(window)}"))
    lines += [words(line) for line in limit_lines(loss_scale)]
    return Group(*lines)


def configured_words(loss_scale: LossScale) -> str:
    """``configured 65,536``, ``dynamic from 65,536``, ``no scaler``."""
    if loss_scale.scaler == "none":
        return "no scaler "
    word = "configured" if loss_scale.scaler is None else "dynamic from"
    return f"{word} {scale(loss_scale.configured)}"


def judged_word(loss_scale: LossScale) -> str:
    """``configured``, or ``settled`` where a scaler moved the scale."""
    return "settled" if loss_scale.skips else "configured"


def settling_lines(loss_scale: LossScale) -> Iterator[str]:
    """What a dynamic scaler does before the first step that it takes, where it skips any."""
    if loss_scale.skips and loss_scale.settles_at is not None:
        yield f"{settling_words(loss_scale.skips, loss_scale.settles_at)}, as at the start of any training"


def judgement(report: Report) -> str:
    """What the scale that is judged does."""
    loss_scale = report.loss_scale
    if report.verdict in _IN_FORWARD:
        return "no other helps: the fault is in forward"
    if report.verdict == "backward-undefined":
        return "no other helps: FP32 has the fault too"
    if report.verdict == "no-workable-scale":
        return "none works"
    if report.verdict == "backward-overflow":
        return "too high: backward overflows here"
    lost = loss_scale.lost_as_judged
    if lost is None:
        return "no gradient to judge it by"
    prefix = "too low: " if report.verdict == "gradient-underflow" else ""
    return f"{prefix}{percent(lost)} of the parameters' gradient is lost"


def window_parts(loss_scale: LossScale) -> tuple[str, ...]:
    """What works, and what is recommended; () where nothing works or nothing was searched."""
    if loss_scale.window is None:
        return ()
    low, high = loss_scale.window
    recommended = loss_scale.recommended or high
    proof = "proven by running it" if loss_scale.verified else "predicted, not proven"
    return f"{power(low)} .. {power(high)}", f"recommended {scale(recommended)}, {proof}"


def _ends(loss_scale: LossScale) -> Iterator[str]:
    """``run: the low end, 2^0, and the high end, 2^12``; the same of the ends that were predicted."""
    if loss_scale.window is None or loss_scale.ends_run is None:
        return
    ends = list(zip(("low", "high"), loss_scale.window, loss_scale.ends_run, strict=True))
    for word, was_run in (("run", True), ("predicted", False)):
        named = [f"the {name} end, {power(end)}" for name, end, run in ends if run is was_run]
        if named:
            yield f"{word}: {', and '.join(named)}"


def limit_lines(loss_scale: LossScale) -> Iterator[str]:
    """Which ends of the window were run, and what limits it there; where there is none, what would help.

    Where no other scale was tried, why.
    """
    if loss_scale.not_searched is not None:
        yield f"other scales were not tried: {_NOT_SEARCHED[loss_scale.not_searched]}"
    if not loss_scale.searched:
        return
    if loss_scale.window is not None:
        yield from _ends(loss_scale)
        yield from _limits(loss_scale, "")
        return
    if loss_scale.limited_by is not None:
        yield from _limits(loss_scale, "no window")
    run = [a for a in loss_scale.alternatives if a.get("run") is not None]
    for alternative in run or loss_scale.alternatives:
        yield _alternative(alternative)


def _limits(loss_scale: LossScale, head: str) -> Iterator[str]:
    limits = loss_scale.limited_by or {}
    ceiling = loss_scale.ceiling
    top = f"above {power(ceiling)}: " if ceiling is not None else ""
    if ceiling is None or ceiling < 2.0**32:
        yield f"{head + ', ' if head else ''}{top}{_place(limits)} overflows"
    low = limits.get("low")
    if low is not None and (head or (loss_scale.window and loss_scale.window[0] > 1)):
        below = f"below {power(loss_scale.window[0])}: " if loss_scale.window else "and there "
        harm = "parameters begin to lose; " if limits.get("low_by") == "parameters" and not head else ""
        yield f"{below}{harm}{_place(low)} is the one that loses most"


def _place(limit: Mapping[str, Any]) -> str:
    """``the backward of mm in blocks.1.ff.wo, model.py:33``."""
    op = short_op(str(limit.get("forward_op") or limit.get("op") or ""))
    source = limit.get("source")
    at = ""
    if source:
        name = str(source["file"]).replace("\\", "/").rpartition("/")[2]
        at = f", {name}:{source['line']}"
    return f"the backward of {op} in {place(str(limit.get('module', '')))}{at}"


def _alternative(alternative: Mapping[str, Any]) -> str:
    module = str(alternative["module"])
    run = alternative.get("run")
    match alternative["kind"]:
        case "bfloat16":
            what = "in BF16"
        case "module-in-fp32":
            what = f"with {module} in FP32"
        case _ if run is not None:
            what = f"with {module} at {scale(run['factor'])} times that"
        case _:
            window, rest = _range(alternative["window"]), _range(alternative["rest"])
            return f"with a scale of its own: {module} {window}, the rest {rest} (predicted)"
    if run is None:
        return f"{what}: {_range(alternative['window'])} (predicted)"
    return f"{what}: {'works' if run['works'] else 'fails'} at loss scale {scale(run['loss_scale'])}"


def _range(window: Any) -> str:
    return "none" if window is None else f"{power(window[0])} .. {power(window[1])}"

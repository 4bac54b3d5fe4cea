"""AMP205: the configured loss scale lies outside the window

What it means
    Other loss scales work and the configured one does not, or hardly: it
    overflows, or gradients that matter become zero, or it lies within the
    safety margin below the first overflow, where one larger batch tips it
    over. A static scale stays there. A dynamic scaler that starts too high
    halves its scale at the price of a few skipped steps, as GradScaler does
    at the start of any training: that is information, and no fault.

How it is found
    The window is read from the exponent histograms of every low-precision
    tensor of one recorded backward and then run: the recommended scale must
    be finite, the first past the ceiling must overflow where predicted.
    Severity is warning where the configured scale does harm, info where it
    lies outside but neither overflows nor harms a parameter. Where a dynamic
    scaler settles is found by running: start, start / 2, start / 4 ...

What to do
    Start the scaler inside the window: torch.amp.GradScaler's init_scale.

Example
    A sum over 4,096 tokens at scale 65,536, where 2^0 to 2^4 work.

Sources
    NVIDIA/apex#226 (a scale found by looking), pytorch/pytorch#99640.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ampdoctor.diagnose.amounts import outside_window
from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.rule import Rule
from ampdoctor.diagnose.scale_limit import limit_words
from ampdoctor.diagnose.verdict import Reading
from ampdoctor.diagnose.wording import count_words, place, scale, settling_words
from ampdoctor.facts.environment import Settling
from ampdoctor.scales.powers_of_two import GradientTensor, recommended_in
from ampdoctor.scales.reading import ScaleReading, Window


def check(reading: Reading) -> Iterable[Finding]:
    """One finding where there is a window and the scale is not in it: of a dynamic scaler, its first one."""
    scales, settling = reading.scales, reading.trace.settling
    configured = reading.trace.loss_scale
    if scales is None or scales.window is None or scales.recommended is None:
        return
    low, high = 2.0**scales.window.low, 2.0**scales.window.high
    if settling is not None and settling.skips and configured >= low:
        yield _settles(settling, reading.trace.environment.loss_scale, scales, scales.window)
    if low <= configured and (configured <= high or settling is not None):
        return  # a dynamic scaler goes up to the first overflow and back, and needs no margin
    if configured < low and not (reading.damage is not None and reading.damage.damaged):
        return  # below the scales that are tried, and nothing is lost there
    harmful = reading.verdict in ("backward-overflow", "gradient-underflow")
    limit = scales.high_limit if configured > high else scales.low_limit
    born = reading.basis.birth if reading.basis and reading.verdict == "backward-overflow" else None
    site = born.site if born is not None else limit.site if limit else None
    source = born.line if born is not None else limit.source if limit else None
    yield Finding(
        code=CODE,
        severity="warning" if harmful else "info",
        title=TITLE,
        module=site.module if site else "",
        op=site.op if site else "",
        source=source,
        message=_message(configured, scales, scales.window, limit),
        evidence={
            "configured": configured,
            "window": [low, high],
            "ceiling": None if scales.ceiling is None else 2.0**scales.ceiling,
            "recommended": 2.0**scales.recommended,
            "verified": scales.verified,
        },
        amounts=outside_window(configured, low, high),
        whole_scan=True,
        remedy=f"torch.amp.GradScaler(init_scale={2.0**scales.recommended:.0f}).",
    )


def _settles(settling: Settling, start: float, scales: ScaleReading, window: Window) -> Finding:
    """Information: the ordinary back-off of a scaler that starts above the window."""
    limit = scales.high_limit
    skips = settling_words(settling.skips, settling.loss_scale)
    where = f": {limit_words(scales)}" if limit else ""
    return Finding(
        code=CODE,
        severity="info",
        title="GradScaler starts above the window and settles in it",
        module=limit.site.module if limit else "",
        op=limit.site.op if limit else "",
        source=limit.source if limit else None,
        message=f"{skips}{where}. It does so at the start of a training, and no fault is in it.",
        evidence={
            "starts_at": start,
            "skips": settling.skips,
            "settles_at": settling.loss_scale,
            "window": [2.0**window.low, 2.0**window.high],
        },
        amounts=outside_window(start, 2.0**window.low, 2.0**window.high),
        whole_scan=True,
        remedy=(
            "Nothing; torch.amp.GradScaler(init_scale="
            f"{2.0 ** recommended_in(window.low, window.high):.0f}) saves those steps."
        ),
    )


def _message(configured: float, scales: ScaleReading, window: Window, limit: GradientTensor | None) -> str:
    where = f" in the backward of {place(limit.site.module)}" if limit else ""
    works = f"{scale(2.0**window.low)} to {scale(2.0**window.high)} work"
    if configured < 2.0**window.low:
        bits = count_words(round(window.low - math.log2(configured)), "bit")
        return f"{scale(configured)} is {bits} too low ({works}): gradients become zero{where}."
    if scales.ceiling is not None and configured > 2.0**scales.ceiling:
        bits = count_words(round(math.log2(configured) - window.high), "bit")
        return f"{scale(configured)} is {bits} too high ({works}): {limit_words(scales)}."
    return (
        f"{scale(configured)} does not overflow, but lies in the margin below the first overflow ({works}): "
        f"{limit_words(scales)}."
    )


CODE, TITLE = "AMP205", "the configured loss scale lies outside the window"
RULE = Rule(CODE, TITLE, "warning", __doc__ or "", check)

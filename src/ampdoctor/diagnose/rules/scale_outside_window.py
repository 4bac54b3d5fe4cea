"""AMP205: the configured loss scale lies outside the window

What it means
    Other loss scales work and the configured one does not, or hardly: it
    overflows, or gradients that matter become zero, or it lies within the
    safety margin below the first overflow, where one larger batch tips it
    over. A dynamic scaler would find its way at the price of skipped steps; a
    static one would not.

How it is found
    The window is read from the exponent histograms of every low-precision
    tensor of one recorded backward and then run: the recommended scale must
    be finite, the first past the ceiling must overflow where predicted.
    Severity is warning where the configured scale does harm, info where it
    lies outside but neither overflows nor harms a parameter.

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
from ampdoctor.diagnose.verdict import Reading
from ampdoctor.diagnose.wording import place, scale
from ampdoctor.scales.powers_of_two import GradientTensor
from ampdoctor.scales.reading import ScaleReading, Window


def check(reading: Reading) -> Iterable[Finding]:
    """One finding where there is a window and the configured scale is not in it."""
    scales = reading.scales
    configured = reading.trace.environment.loss_scale
    if scales is None or scales.window is None or scales.recommended is None:
        return
    low, high = 2.0**scales.window.low, 2.0**scales.window.high
    if low <= configured <= high:
        return
    harmful = reading.verdict in ("backward-overflow", "gradient-underflow")
    limit = scales.high_limit if configured > high else scales.low_limit
    yield Finding(
        code=CODE,
        severity="warning" if harmful else "info",
        title=TITLE,
        module=limit.site.module if limit else "",
        op=limit.site.op if limit else "",
        source=limit.source if limit else None,
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


def _message(configured: float, scales: ScaleReading, window: Window, limit: GradientTensor | None) -> str:
    where = f" in the backward of {place(limit.site.module)}" if limit else ""
    works = f"{scale(2.0**window.low)} to {scale(2.0**window.high)} work"
    if configured < 2.0**window.low:
        bits = window.low - math.log2(configured)
        return f"{scale(configured)} is {bits:.0f} bits too low ({works}): gradients become zero{where}."
    if scales.ceiling is not None and configured > 2.0**scales.ceiling:
        bits = math.log2(configured) - window.high
        return f"{scale(configured)} is {bits:.0f} bits too high ({works}): overflow{where}."
    return (
        f"{scale(configured)} does not overflow, but lies in the margin below the first overflow{where} "
        f"({works})."
    )


CODE, TITLE = "AMP205", "the configured loss scale lies outside the window"
RULE = Rule(CODE, TITLE, "warning", __doc__ or "", check)

"""The report's part on loss scales: what was configured, what works, what limits it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ampdoctor.diagnose.outcome import is_healthy, share_lost
from ampdoctor.diagnose.report import LossScale
from ampdoctor.diagnose.verdict import Reading
from ampdoctor.facts.plain import to_json
from ampdoctor.facts.trace import Trace
from ampdoctor.facts.words import NotSearched
from ampdoctor.scales.powers_of_two import GradientTensor, is_power_of_two
from ampdoctor.scales.reading import Alternative, ScaleReading, Window
from ampdoctor.scales.search_allowed import why_not_searched


def loss_scale_of(reading: Reading) -> LossScale:
    """The window, and the share of gradient elements that become zero at every power of two."""
    trace, scales = reading.trace, reading.scales
    known = _configured(trace)
    if scales is None:
        return replace(known, not_searched=_why_not(trace))
    window = scales.window
    return replace(
        known,
        recommended=None if scales.recommended is None else 2.0**scales.recommended,
        window=None if window is None else _scales(window),
        ends_run=None if window is None else (_works(scales, window.low), _works(scales, window.high)),
        limited_by=_limits(scales),
        verified=scales.verified,
        underflow_fraction=_underflow(scales, known.judged),
        searched=True,
        ceiling=None if scales.ceiling is None else 2.0**scales.ceiling,
        # What FP32 has too is cured by no format, no island and no scale: their windows are of range alone.
        alternatives=()
        if reading.verdict == "backward-undefined"
        else tuple(_alternative(a) for a in scales.alternatives),
    )


def _configured(trace: Trace) -> LossScale:
    """What was asked for, where a scaler settles, and what parameters lose in the runs."""
    scaler, settling = trace.environment.scaler, trace.settling
    return LossScale(
        configured=trace.environment.loss_scale,
        lost_fraction=_lost(trace),
        scaler=None if scaler == "fixed" else scaler,
        skips=settling.skips if settling else None,
        settles_at=settling.loss_scale if settling else None,
    )


def _why_not(trace: Trace) -> NotSearched:
    if trace.interrupted:
        return "interrupted"
    if trace.scale_runs:
        return "nothing-rounds"
    return why_not_searched(trace.passes, trace.births, trace.environment.scaler) or "not-asked"


def _works(scales: ScaleReading, exponent: int) -> bool:
    """Every batch was run there and is finite."""
    return any(run.finite and run.loss_scale == 2.0**exponent for run in scales.runs)


def _scales(window: Window) -> tuple[float, float]:
    return 2.0**window.low, 2.0**window.high


def _underflow(scales: ScaleReading, judged: float) -> dict[str, float | None]:
    """{scale: share}; None where that scale overflows, and for the judged one if it is no power of two."""
    shares: dict[str, float | None] = {}
    if not is_power_of_two(judged):
        shares[f"{judged:g}"] = None
    if scales.ceiling is not None:
        for point in scales.points:
            overflows = point.exponent > scales.ceiling
            shares[str(2**point.exponent)] = None if overflows else point.underflow_fraction
    return shares


def _limits(scales: ScaleReading) -> dict[str, Any] | None:
    """The place that limits the top, with ``low`` the one that limits the bottom."""
    if scales.high_limit is None:
        return None
    limits = _limit(scales.high_limit)
    limits["low"] = None if scales.low_limit is None else _limit(scales.low_limit)
    limits["low_by"] = "parameters" if scales.by_parameters else "elements"
    return limits


def _limit(tensor: GradientTensor) -> dict[str, Any]:
    return {
        "module": tensor.site.module,
        "op": tensor.site.op,
        "forward_op": tensor.forward_op,
        "source": to_json(tensor.source),
        "batch": tensor.batch,
        "absmax": tensor.absmax,
    }


def _alternative(alternative: Alternative) -> dict[str, Any]:
    window, rest = alternative.window, alternative.rest
    return {
        "kind": alternative.kind,
        "module": alternative.module,
        "window": None if window is None else list(_scales(window)),
        "rest": None if rest is None else list(_scales(rest)),
        "run": to_json(alternative.run),
    }


def _lost(trace: Trace) -> dict[str, float | None]:
    """{scale: share of parameter-gradient elements lost} for every scale at which all batches were run.

    Of the worst batch; one whose gradients are all zero in FP32 has nothing to lose.
    """
    shares: dict[str, list[float | None]] = {}
    for candidate in trace.passes:
        if candidate.role in ("candidate", "ladder") and candidate.parameters:
            key = f"{candidate.loss_scale:.0f}" if candidate.loss_scale >= 1 else f"{candidate.loss_scale:g}"
            seen = shares.setdefault(key, [])
            if not is_healthy(candidate, trace.environment.forward_only):
                seen.append(None)
            elif (share := share_lost(candidate)) is not None:
                seen.append(share)
    return {key: _worst(seen) for key, seen in shares.items()}


def _worst(shares: Sequence[float | None]) -> float | None:
    known = [share for share in shares if share is not None]
    return max(known) if known and len(known) == len(shares) else None

"""How bad a finding is, in numbers: for a gate's ``by how much``, and to tell whether a known one grew."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.wording import count_words, number, percent, scale

OVERFLOW, HEADROOM, SHARE, LOST, DRIFT, SCALE = (
    "overflow_bits",
    "headroom_bits",
    "share",
    "lost",
    "drift",
    "scale_bits",
)


def amounts(finding: Finding) -> dict[str, float]:
    """{what: how much} for what this finding has a measure of, not rounded.

    ``overflow_bits`` past the end of the format; ``headroom_bits`` left; ``share`` of the tensor's elements
    that are bad, or of the updates that are lost; ``lost`` of the gradient; ``drift``, the worst relative
    error; ``scale_bits`` outside the window.
    """
    evidence = finding.evidence
    found = {
        OVERFLOW: _overflow(evidence),
        HEADROOM: _number(evidence.get("headroom_bits")),
        SHARE: _share(evidence),
        LOST: _number(evidence.get("lost_fraction")),
        DRIFT: _drift(evidence.get("relative_error")),
        SCALE: _scale(evidence),
    }
    return {name: value for name, value in found.items() if value is not None}


def by_how_much(finding: Finding) -> str:
    """``6.1 % past 65,504``, ``0.5 bits left, 1 asked for``; '' for what has no measure."""
    evidence, known = finding.evidence, amounts(finding)
    if OVERFLOW in known:
        bits, end = known[OVERFLOW], number(evidence["largest"])
        return f"{bits:.1f} bits past {end}" if bits >= 1 else f"{percent(2**bits - 1)} past {end}"
    if HEADROOM in known:
        return f"{known[HEADROOM]:.1f} bits left, {evidence.get('limit_bits', 0):g} asked for"
    if "swallowed" in evidence and SHARE in known:
        return f"{evidence['swallowed']:,} of {count_words(evidence['moved'], 'update')} lost"
    if SHARE in known:
        what = "NaN" if evidence.get("value") == "nan" else "inf"
        return f"{evidence['count']:,} of {count_words(evidence['numel'], 'element')} {what}"
    if LOST in known:
        at = f" at loss scale {scale(evidence['loss_scale'])}" if "loss_scale" in evidence else ""
        return f"{percent(known[LOST])} of the gradient lost{at}"
    if DRIFT in known:
        return f"{percent(known[DRIFT])} off FP32"
    if SCALE in known:
        return f"{known[SCALE]:.0f} bits outside the window"
    if "nan" in evidence and "inf" in evidence:
        return f"{evidence['nan']:,} NaN, {evidence['inf']:,} inf"
    if "ceiling" in evidence:
        return f"overflow above {scale(evidence['ceiling'])}"
    return ""


def _overflow(evidence: Mapping[str, Any]) -> float | None:
    """Bits between the largest exact value, or else FP32's, and the largest the format holds."""
    largest = _number(evidence.get("largest"))
    if evidence.get("cause") != "range" or largest is None:
        return None
    for key in ("furthest_value", "exact_value", "reference_value"):
        value = _number(evidence.get(key))
        if value is not None and abs(value) > largest:
            return math.log2(abs(value) / largest)
    return None


def _share(evidence: Mapping[str, Any]) -> float | None:
    count, numel = evidence.get("count"), evidence.get("numel")
    return count / numel if count and numel else _number(evidence.get("share"))


def _drift(errors: Any) -> float | None:
    if not isinstance(errors, Mapping):
        return None
    return max((e for e in map(_number, errors.values()) if e is not None), default=None)


def _scale(evidence: Mapping[str, Any]) -> float | None:
    configured, window = _number(evidence.get("configured")), evidence.get("window")
    if configured is None or not window:
        return None
    low, high = window
    return max(math.log2(configured / high), math.log2(low / configured), 0.0)


def _number(value: Any) -> float | None:
    """The value where it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None

"""A report against its baseline: what is worse than what was known, and what is gone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ampdoctor.diagnose.gate_result import Check
from ampdoctor.diagnose.gathering import apart
from ampdoctor.diagnose.report import Finding, Report
from ampdoctor.diagnose.wording import count_words, format_name, in_mode, listing, percent, place, scale
from ampdoctor.facts.words import SEVERITIES, Scaler
from ampdoctor.gate.baseline import (
    Known,
    KnownFinding,
    KnownLimit,
    key_of,
    known_finding,
    known_layer,
    run_of,
)
from ampdoctor.gate.rules import HEADROOM, GateRules

GREW = 2.0
"""A known fault in more than this many times as many elements is a worse one; runs of the same code agree."""


_SCALERS: dict[Scaler, str] = {
    "fixed": "loss scale {}",
    "dynamic": "a dynamic loss scale from {}",
    "none": "no loss scale",
}


def worse_words(group: Sequence[Finding], known: KnownFinding, rules: GateRules) -> str:
    """How findings with one key are worse than the known one, in a few words; '' where they are not."""
    now = known_finding(group)
    bits, share = rules.allow_headroom_loss, rules.allow_underflow_gain
    if SEVERITIES.index(now.severity) < SEVERITIES.index(known.severity):
        return f"{now.severity} instead of {known.severity}"
    if now.places > known.places:
        return f"in {now.places:,} places instead of {known.places:,}"
    if _rose(now.overflow_bits, known.overflow_bits, bits):
        return f"{now.overflow_bits:.1f} bits past the format's end instead of {known.overflow_bits:.1f}"
    if _rose(known.headroom_bits, now.headroom_bits, bits):
        return f"{now.headroom_bits:.1f} bits of headroom instead of {known.headroom_bits:.1f}"
    if now.share is not None and known.share is not None and now.share > GREW * known.share:
        return f"in {percent(now.share)} of the elements instead of {percent(known.share)}"
    if _rose(now.lost, known.lost, share):
        return f"{percent(now.lost)} of the gradient lost instead of {percent(known.lost)}"
    if _rose(now.drift, known.drift, share):
        return f"{percent(now.drift)} off FP32 instead of {percent(known.drift)}"
    if _rose(now.scale_bits, known.scale_bits, bits):
        return f"{now.scale_bits:.1f} bits outside the window instead of {known.scale_bits:.1f}"
    return ""


def limit_is_known(check: Check, known: Sequence[KnownLimit], rules: GateRules) -> bool:
    """True for a broken limit that the baseline has, and that is broken no worse now."""
    entry = next((k for k in known if (k.limit, k.subject) == (check.name, check.subject)), None)
    if entry is None:
        return False
    if entry.measured is None or check.measured is None:
        return entry.measured is check.measured
    if check.name == HEADROOM:
        return not _rose(entry.measured, check.measured, rules.allow_headroom_loss)
    in_bits = check.name == "scale_in_window"
    allowed = rules.allow_headroom_loss if in_bits else rules.allow_underflow_gain
    return not _rose(check.measured, entry.measured, allowed)


def layer_losses(report: Report, known: Known, rules: GateRules) -> Iterator[Check]:
    """Layers that lost more headroom, or more of their gradient, than is allowed."""
    for row in report.layers:
        now, was = known_layer(row), known.layers.get(row.module)
        if now is None or was is None:
            continue
        if now.headroom_bits is not None and _rose(
            was.headroom_bits, now.headroom_bits, rules.allow_headroom_loss
        ):
            lost = (was.headroom_bits or 0.0) - now.headroom_bits
            by = f"{lost:.1f} bits lost, {rules.allow_headroom_loss:g} allowed"
            message = (
                f"{now.headroom_bits:.1f} bits of headroom, {was.headroom_bits:.1f} in the baseline: {by}."
            )
            yield Check(
                name="headroom_loss",
                code="AMP103",
                title="headroom lost against the baseline",
                module=row.module,
                op="",
                source=None,
                message=message,
                by=by,
                measured=now.headroom_bits,
                limit=was.headroom_bits,
            )
        if _rose(now.underflow, was.underflow, rules.allow_underflow_gain):
            gain = (now.underflow or 0.0) - (was.underflow or 0.0)
            by = f"{percent(gain)} more, {percent(rules.allow_underflow_gain)} allowed"
            message = (
                f"{percent(now.underflow)} of the gradient becomes zero by rounding, "
                f"{percent(was.underflow)} in the baseline: {by}."
            )
            yield Check(
                name="underflow_gain",
                code="AMP203",
                title="more underflow than in the baseline",
                module=row.module,
                op="",
                source=None,
                message=message,
                by=by,
                measured=now.underflow,
                limit=was.underflow,
            )


def gone(report: Report, known: Known, broken: Sequence[Check]) -> Iterator[str]:
    """What the baseline knows and the report has no more, a phrase each."""
    present = {key_of(finding) for finding in apart(report.findings)}
    for finding in known.findings:
        if finding.key not in present:
            line = f" ({finding.line})" if finding.line else ""
            yield f"{finding.code} in {place(finding.module)}{line}"
    limits = {(check.name, check.subject) for check in broken}
    for limit in known.limits:
        if (limit.limit, limit.subject) not in limits:
            yield f"{limit.limit}{f' of {limit.subject}' if limit.subject else ''}, which is kept now"
    modules = {row.module for row in report.layers}
    missing = [module for module in known.layers if module not in modules]
    if missing:
        yield f"{count_words(len(missing), 'layer')}: {listing([place(m) for m in missing])}"


def other_run(report: Report, known: Known) -> str:
    """What the baseline was measured on, where that was something else; '' where it was the same."""
    now, was = run_of(report.environment), known.run
    parts = []
    if (now.device, now.emulates) != (was.device, was.emulates):
        emulated = ", emulating CUDA" if was.emulates else ""
        parts.append(f"{was.device}{emulated}")
    if (now.mode, now.dtype) != (was.mode, was.dtype):
        parts.append(in_mode(format_name(was.dtype), was.mode))
    if (now.scaler, now.loss_scale) != (was.scaler, was.loss_scale):
        parts.append(_SCALERS[was.scaler].format(scale(was.loss_scale)))
    if now.torch != was.torch:
        parts.append(f"torch {was.torch}")
    return f"The baseline was measured with {', '.join(parts)}." if parts else ""


def _rose(now: float | None, was: float | None, allowed: float) -> bool:
    """True where both are known and the first is above the second by more than what is allowed."""
    # both are rounded to tenths or thousandths: what is left of a binary fraction is no rise
    return now is not None and was is not None and now - was > allowed + 1e-9

"""``evaluate(report, rules, known) -> Report``: the report as a gate sees it, with the gate's word in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ampdoctor.diagnose.gate_result import (
    FAILED,
    NOT_MEASURED,
    PASSED,
    Check,
    GateResult,
    WaiverState,
)
from ampdoctor.diagnose.gathering import apart, gathered
from ampdoctor.diagnose.report import Finding, Report
from ampdoctor.diagnose.waivers import Waiver
from ampdoctor.facts.words import GateStatus
from ampdoctor.gate.baseline import Key, Known, key_of
from ampdoctor.gate.findings import located, weighed
from ampdoctor.gate.limits import LimitChecks, check_limits
from ampdoctor.gate.regression import gone, layer_losses, limit_is_known, other_run, worse_words
from ampdoctor.gate.rules import GateRules

DEFAULT_RULES = GateRules()


def evaluate(
    report: Report, rules: GateRules = DEFAULT_RULES, known: Known | None = None, baseline: str = ""
) -> Report:
    """The same report with ``gate`` filled in, and findings that weigh what they weigh for the gate.

    What fails is an error; what the baseline knows is information. A limit that is broken where no finding
    speaks of it becomes a finding of its own. ``known`` is this config's section of the file ``baseline``.
    """
    if report.verdict == "not-measured" or report.interrupted:
        notes = tuple(_notes(report, None))
        return replace(report, gate=GateResult(NOT_MEASURED, (), 0, (), notes, "", _why_not(report)))
    report = replace(report, findings=tuple(apart(report.findings)))
    limits = check_limits(report, rules)
    findings = _judge_findings(report, rules, known)
    broken = _judge_limits(report, limits, rules, known)
    unchecked = tuple(c for c in limits.unmeasured if not _is_known(c, known, rules))
    more = _without_doubles(broken.failed, findings.checks)
    telling = [f for f in report.findings if not any(f is known_one for known_one in findings.known)]
    failed = (*findings.checks, *(located(check, telling) for check in more))
    status: GateStatus = FAILED if failed else NOT_MEASURED if unchecked else PASSED
    waived = sum(f.accepted is not None for f in report.findings)
    gate = GateResult(
        status=status,
        checks=failed or unchecked,
        accepted=waived + len(findings.known) + len(broken.accepted),
        gone=tuple(gone(report, known, (*limits.failed, *limits.unmeasured))) if known else (),
        notes=(*_verdict_note(status, report), *_notes(report, known)),
        baseline=baseline if known else "",
    )
    return replace(
        report,
        gate=gate,
        findings=gathered(weighed(report.findings, findings.failing, findings.known, broken.failed)),
        waivers=tuple(_used(w, (*broken.failed, *broken.accepted)) for w in report.waivers),
    )


def broken_limits(report: Report, rules: GateRules) -> tuple[Check, ...]:
    """Limits that fail or could not be checked and that no waiver covers: a new baseline accepts them."""
    limits = check_limits(report, rules)
    return tuple(c for c in (*limits.failed, *limits.unmeasured) if not _is_waived(c, report.waivers))


@dataclass(frozen=True)
class _Findings:
    """The findings that the rules fail on, told apart by the baseline."""

    checks: tuple[Check, ...]
    """What is said of those that fail."""
    failing: tuple[Finding, ...]
    known: tuple[Finding, ...]


@dataclass(frozen=True)
class _Limits:
    """Broken limits, and what layers lost against the baseline."""

    failed: tuple[Check, ...]
    accepted: tuple[Check, ...]


def _judge_findings(report: Report, rules: GateRules, known: Known | None) -> _Findings:
    groups: dict[Key, list[Finding]] = {}
    for finding in report.findings:
        if rules.fails_on(finding):
            groups.setdefault(key_of(finding), []).append(finding)
    entries = {entry.key: entry for entry in known.findings} if known else {}
    checks: list[Check] = []
    failing: list[Finding] = []
    accepted: list[Finding] = []
    for key, group in groups.items():
        entry = entries.get(key)
        worse = worse_words(group, entry, rules) if entry is not None else ""
        if entry is not None and not worse:
            accepted += group
            continue
        failing += group
        if worse:
            checks.append(_check(group[0], "worse", worse))
        else:
            checks += [_check(finding, "finding", finding.amounts.by) for finding in group]
    return _Findings(tuple(checks), tuple(failing), tuple(accepted))


def _check(finding: Finding, name: str, by: str) -> Check:
    message = f"{finding.message} Worse than the baseline: {by}." if name == "worse" else finding.message
    return Check(name, finding.code, finding.title, finding.module, finding.op, finding.source, message, by)


def _judge_limits(report: Report, limits: LimitChecks, rules: GateRules, known: Known | None) -> _Limits:
    """A waiver for the rule that a limit belongs to covers the limit too."""
    losses = layer_losses(report, known, rules) if known else ()
    failed: list[Check] = []
    accepted: list[Check] = []
    for check in (*limits.failed, *losses):
        fine = _is_waived(check, report.waivers) or _is_known(check, known, rules)
        (accepted if fine else failed).append(check)
    return _Limits(tuple(failed), tuple(accepted))


def _is_known(check: Check, known: Known | None, rules: GateRules) -> bool:
    return known is not None and limit_is_known(check, known.limits, rules)


def _is_waived(check: Check, waivers: Sequence[WaiverState]) -> bool:
    return any(w.state != "expired" and _fits(w, check) for w in waivers)


def _fits(waiver: WaiverState, check: Check) -> bool:
    return Waiver(waiver.code, waiver.module, "").fits(check.code, check.module)


def _used(waiver: WaiverState, checks: Iterable[Check]) -> WaiverState:
    """The waiver with the broken limits that it covers counted in."""
    matches = waiver.matches + sum(_fits(waiver, check) for check in checks)
    state = "used" if matches and waiver.state == "unused" else waiver.state
    return replace(waiver, matches=matches, state=state)


def _without_doubles(limits: Sequence[Check], findings: Sequence[Check]) -> Iterator[Check]:
    """The limits that say something the failing findings do not say already."""
    said = {(check.code, check.module) for check in findings}
    for check in limits:
        if (check.code, check.module) not in said:
            yield check


def _why_not(report: Report) -> str:
    if report.interrupted:
        return "The scan was interrupted: what came after was not measured."
    return report.headline.rest


def _verdict_note(status: GateStatus, report: Report) -> Iterator[str]:
    if status == PASSED and report.verdict != "clean":
        yield f"The verdict is {report.verdict} all the same: what it rests on is accepted or not asked for."


def _notes(report: Report, known: Known | None) -> Iterator[str]:
    environment = report.environment
    if known is not None and (note := other_run(report, known)):
        yield note
    if environment.emulates:
        yield "CUDA was emulated on a CPU: no GPU kernel ran (AMP901)."
    elif environment.device.startswith("cpu"):
        yield "Measured with the CPU's own kernels: no GPU kernel ran (AMP901)."

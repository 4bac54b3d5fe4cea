"""The findings of a report as a gate weighs them, so that every format shows what fails as an error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ampdoctor.diagnose.gate_result import Accepted, Check
from ampdoctor.diagnose.report import Finding
from ampdoctor.facts.words import SEVERITIES

_REMEDY = "Find the change that did it. If it is meant: another limit, a waiver, or a new baseline."


def weighed(
    findings: Sequence[Finding],
    failing: Sequence[Finding],
    known: Sequence[Finding],
    broken: Sequence[Check],
) -> tuple[Finding, ...]:
    """What fails as an error, what the baseline knows as information, each broken limit as a finding."""
    failed_ids, known_ids = {id(f) for f in failing}, {id(f) for f in known}
    judged: list[Finding] = []
    for finding in findings:
        if id(finding) in known_ids:
            accepted = Accepted("baseline", finding.severity)
            judged.append(replace(finding, severity="info", accepted=accepted))
        elif id(finding) in failed_ids or any(_says(finding, check) for check in broken):
            judged.append(replace(finding, severity="error"))
        else:
            judged.append(finding)
    telling = [finding for finding in findings if id(finding) not in known_ids]
    judged += [_finding_of(c) for c in broken if not any(_says(finding, c) for finding in telling)]
    return tuple(sorted(judged, key=lambda finding: SEVERITIES.index(finding.severity)))


def located(check: Check, findings: Sequence[Finding]) -> Check:
    """The broken limit at the place of the finding that tells of it, where there is one."""
    finding = next((f for f in findings if _says(f, check)), None)
    if finding is None:
        return check
    return replace(check, module=finding.module, op=finding.op, source=finding.source)


def _says(finding: Finding, check: Check) -> bool:
    """True for a finding that tells of the broken limit already."""
    if finding.accepted is not None or finding.code != check.code:
        return False
    return finding.module == check.module or (not check.module and finding.whole_scan)


def _finding_of(check: Check) -> Finding:
    return Finding(
        code=check.code,
        severity="error",
        title=check.title,
        module=check.module,
        op=check.op,
        source=check.source,
        message=check.message,
        evidence={
            "check": check.name,
            "parameter": check.parameter or None,
            "measured": check.measured,
            "limit": check.limit,
        },
        remedy=_REMEDY,
    )

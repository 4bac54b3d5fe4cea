"""What a report points at, one by one: its findings, and what its gate could not check."""

from __future__ import annotations

from dataclasses import dataclass

from ampdoctor.diagnose.gate_result import NOT_MEASURED, Accepted, Check, GateResult
from ampdoctor.diagnose.report import Finding, Report
from ampdoctor.diagnose.rules import RULES
from ampdoctor.facts.site import Source

TITLES = {rule.code: rule.title for rule in RULES}


@dataclass(frozen=True)
class Problem:
    """One thing to point at, with what a machine needs to track it."""

    code: str
    level: str
    """``error`` | ``warning`` | ``info``"""
    outcome: str
    """``failed`` | ``not-measured`` (a gate could not check it) | ``noted`` (fails nothing)"""
    title: str
    module: str
    op: str
    source: Source | None
    message: str
    remedy: str
    accepted: Accepted | None = None
    finding: Finding | None = None
    """None for what a gate could not check."""


def problems_of(report: Report) -> tuple[Problem, ...]:
    """Worst first. Every error fails, unless a gate has judged the report: then what it says fails."""
    problems = [_of_finding(finding, report.gate) for finding in report.findings]
    if report.gate is not None and report.gate.status == NOT_MEASURED:
        problems += [_unchecked(check) for check in report.gate.checks]
    return tuple(sorted(problems, key=lambda problem: _RANKS[problem.level]))


_RANKS = {"error": 0, "warning": 1, "info": 2}


def _of_finding(finding: Finding, gate: GateResult | None) -> Problem:
    # a gate makes a finding of all that fails; an error it is not asked to fail on stays an error
    fails = finding.severity == "error" and (gate is None or finding.code in {c.code for c in gate.checks})
    return Problem(
        code=finding.code,
        level=finding.severity,
        outcome="failed" if fails else "noted",
        title=finding.title,
        module=finding.module,
        op=finding.op,
        source=finding.source,
        message=finding.message,
        remedy=finding.remedy,
        accepted=finding.accepted,
        finding=finding,
    )


def _unchecked(check: Check) -> Problem:
    return Problem(
        code=check.code,
        level="error",
        outcome="not-measured",
        title=check.title,
        module=check.module,
        op=check.op,
        source=check.source,
        message=check.message,
        remedy="",
    )

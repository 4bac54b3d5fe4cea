"""What a report points at, one by one: its findings, and what its gate found besides."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ampdoctor.diagnose.gate_result import FAILED, NOT_MEASURED, Accepted, Check
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
    """None for what only the gate says."""


def problems_of(report: Report) -> tuple[Problem, ...]:
    """Worst first. What fails is what the gate says, or every error where no gate has judged the report."""
    gate = report.gate
    checks = gate.checks if gate is not None and gate.status in (FAILED, NOT_MEASURED) else ()
    problems = [_of_finding(f, checks, gated=gate is not None) for f in report.findings]
    found = {_key(finding) for finding in report.findings}
    outcome = "not-measured" if gate is not None and gate.status == NOT_MEASURED else "failed"
    problems += [_of_check(check, outcome) for check in checks if _key(check) not in found]
    return tuple(sorted(problems, key=lambda p: _RANKS[p.level]))


_RANKS = {"error": 0, "warning": 1, "info": 2}


def _of_finding(finding: Finding, checks: Iterable[Check], gated: bool) -> Problem:
    failing = next((check for check in checks if _key(check) == _key(finding)), None)
    fails = failing is not None or (not gated and finding.severity == "error")
    return Problem(
        code=finding.code,
        level="error" if failing is not None else finding.severity,
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


def _of_check(check: Check, outcome: str) -> Problem:
    return Problem(
        code=check.code,
        level="error",
        outcome=outcome,
        title=TITLES.get(check.code, check.name),
        module=check.module,
        op=check.op,
        source=check.source,
        message=check.message,
        remedy="",
    )


def _key(thing: Finding | Check) -> tuple[object, ...]:
    return thing.code, thing.module, thing.op, thing.source

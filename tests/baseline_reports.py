"""Reports, and a baseline made of one."""

from __future__ import annotations

import math
from typing import Any

from ampdoctor.diagnose.engine import diagnose
from ampdoctor.diagnose.gate_result import GateResult
from ampdoctor.diagnose.policy import Policy
from ampdoctor.diagnose.report import Report
from ampdoctor.facts.trace import Birth
from ampdoctor.gate.baseline import Known, known_of
from ampdoctor.gate.evaluate import broken_limits, evaluate
from ampdoctor.gate.rules import GateRules
from trace_builder import (
    candidate,
    parameter,
    record,
    reference,
    trace,
)


def overflow(*births: Birth, policy: Policy | None = None) -> Report:
    """Overflows in forward; the loss and the gradient are NaN."""
    sick = candidate(
        loss=math.nan,
        parameters=(parameter("w", nan=100, absmax=None),),
        sites=(record("fc", "aten::mm", 0, 4094.0),),
    )
    return diagnose(trace(births=births, passes=(reference(), sick)), policy or Policy())


def layer(bits: float, underflow: int = 0) -> Report:
    """A clean scan; fc has ``bits`` of headroom, and its backward zeroes that many of 1000 elements."""
    sites = (
        record("fc", "aten::mm", 0, 65504 / 2**bits),
        record("fc", "aten::_to_copy", 5, 1.0, "backward", numel=1000, flushed=underflow, zeros=underflow),
    )
    return diagnose(trace(passes=(reference(), candidate(sites=sites))))


def known(report: Report, rules: GateRules | None = None) -> Known:
    rules = rules or GateRules()
    return known_of(report, rules, broken_limits(report, rules))


def against(before: Report, now: Report, rules: GateRules | None = None) -> GateResult:
    """The gate on ``now``, where everything in ``before`` is accepted."""
    rules = rules or GateRules()
    gate = evaluate(now, rules, known(before, rules), "b.json").gate
    assert gate is not None
    return gate


def failures(gate: GateResult) -> list[tuple[str, str, str]]:
    return [(c.name, c.module, c.by) for c in gate.checks]


KNOWN: dict[str, Any] = {"exact_value": 2 * 65504.0, "count": 16}
"""One bit past the end, in 16 of 1536 elements."""

"""Reports to judge, and what a gate says of them."""

from __future__ import annotations

import math
from typing import Any

from ampdoctor.diagnose.engine import diagnose
from ampdoctor.diagnose.gate_result import GateResult
from ampdoctor.diagnose.policy import Policy
from ampdoctor.diagnose.report import Report
from ampdoctor.facts.trace import SiteRecord
from ampdoctor.gate.evaluate import evaluate
from ampdoctor.gate.rules import GateRules, Limit
from trace_builder import birth, candidate, module, parameter, record, reference, trace

EMULATED = "CUDA was emulated on a CPU: no GPU kernel ran (AMP901)."


def healthy(policy: Policy | None = None, **changes: Any) -> Report:
    """One layer with an absmax of 1 and a parameter whose gradient is right."""
    return diagnose(trace(**changes), policy or Policy())


def overflow(**changes: Any) -> Report:
    """blocks.1.ff.wo makes 66,246.1 out of range; the loss and a gradient are NaN."""
    sick = candidate(loss=math.nan, parameters=(parameter("w", nan=100, absmax=None),))
    return healthy(births=(birth(**changes),), passes=(reference(), sick))


def layers(*sites: SiteRecord, policy: Policy | None = None, **changes: Any) -> Report:
    """A clean scan in which these tensors were made."""
    names = dict.fromkeys(site.site.module for site in sites)
    passes = (reference(), candidate(sites=sites, **changes))
    return healthy(policy, modules=tuple(module(name) for name in names), passes=passes)


def loud(name: str, bits: float, **changes: Any) -> SiteRecord:
    """A tensor that is ``bits`` below the end of FP16."""
    return record(name, "aten::mm", 0, 65504 / 2**bits, **changes)


def judged(report: Report, rules: GateRules | None = None) -> GateResult:
    gate = evaluate(report, rules or GateRules()).gate
    assert gate is not None
    return gate


def failures(gate: GateResult) -> list[tuple[str, str, str, str]]:
    return [(c.name, c.code, c.subject, c.by) for c in gate.checks]


def limits(*stated: Limit) -> GateRules:
    return GateRules(limits=stated)

"""The findings of one rule on a trace built by hand."""

from __future__ import annotations

import math
from typing import Any

from ampdoctor.diagnose.engine import diagnose
from ampdoctor.diagnose.policy import Policy
from ampdoctor.diagnose.report import Finding
from ampdoctor.facts.trace import Trace
from trace_builder import (
    birth,
    candidate,
    parameter,
    reference,
    trace,
)

SICK = {"loss": math.nan, "parameters": (parameter("w", nan=100, absmax=None),)}


def findings(t: Trace, code: str, policy: Policy | None = None) -> list[Finding]:
    return [f for f in diagnose(t, policy or Policy()).findings if f.code == code]


def of_birth(code: str, **facts: Any) -> Finding:
    """The one finding of that code about one fault in an otherwise healthy reference."""
    passes = (reference(), candidate(**SICK))
    (finding,) = findings(trace(births=(birth(**facts),), passes=passes), code)
    return finding


BACKWARD: dict[str, Any] = {
    "phase": "backward",
    "forward_op": "aten::addmm",
    "reaches_loss": False,
    "samples": None,
}

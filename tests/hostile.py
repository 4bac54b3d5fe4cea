"""Reports whose names and lines try to act in whatever format shows them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ampdoctor.diagnose.engine import diagnose
from ampdoctor.diagnose.gate_result import FAILED, NOT_MEASURED, Accepted, Check, GateResult
from ampdoctor.diagnose.report import Report
from ampdoctor.facts.site import Source
from trace_builder import birth, candidate, environment, module, parameter, reference, source, step, trace

REPOSITORY = "/repo"
"""The root that the paths of these reports start from."""

NAMES = {
    "html": "<script>alert(1)</script>",
    "table": "a | b",
    "backticks": "a `b` ``c``",
    "markdown": "[x](http://e.com) **b** _i_ ~~s~~ $m$ # h",
    "lines": "a\nb\r\nc",
    "command": "x\n::error file=a,line=1::b",
    "escapes": "\x1b[31mred\x00",
    "unicode": "моделька.слой²",
    "surrogate": "a\ud800b",
    "percent": "100%0A",
    "quotes": "a\"b'c&d",
    "item": "1. x",
    "blank": "   ",
}


def sick(name: str = "blocks.1.ff.wo", at: Source | None = None, **changes: Any) -> Report:
    """A forward overflow in the module ``name``, at a line of the repository unless another is given."""
    at = at if at is not None else source(file=f"{REPOSITORY}/src/model.py")
    return report_of(birth(name, source=at, **changes), module(name))


def without_source() -> Report:
    """A forward overflow whose line nobody knows."""
    path = (replace(step("blocks.1", "aten::add"), source=None),)
    return report_of(birth(source=None, path=path), module("blocks.1.ff.wo"))


def report_of(fault: Any, *modules: Any) -> Report:
    """The report on a candidate with this fault, scanned with sub/t5.yaml."""
    bad = candidate(loss=math.nan, parameters=(parameter("w", nan=100, absmax=None),))
    return diagnose(
        trace(births=(fault,), modules=modules, passes=(reference(), bad)), config=f"{REPOSITORY}/sub/t5.yaml"
    )


def clean(title: str = "healthy.yaml") -> Report:
    """A model without fault, whose scan imitated CUDA."""
    return diagnose(trace(environment=environment(title=title)), config=f"{REPOSITORY}/{title}")


def accepted() -> Report:
    """The overflow of ``sick``, waived."""
    report = sick()
    waiver = Accepted("waiver", report.findings[0].severity, "known since May")
    return replace(report, findings=(replace(report.findings[0], severity="info", accepted=waiver),))


def gated(report: Report, status: str, *checks: Check) -> Report:
    """The report with a gate's word in it."""
    return replace(report, gate=GateResult(status, checks, 0, (), (), ""))


def unchecked() -> Report:
    """A clean report of whose layer fc a gate could not check the drift."""
    check = Check(
        name="drift",
        code="AMP206",
        title="a gradient drifts from the reference",
        module="fc",
        op="",
        source=None,
        message="There is no reference.",
        by="not measured",
    )
    return gated(clean(), NOT_MEASURED, check)


def failing(report: Report) -> Report:
    """The report with a gate that fails on its first finding."""
    first = report.findings[0]
    check = Check(
        name="finding",
        code=first.code,
        title=first.title,
        module=first.module,
        op=first.op,
        source=first.source,
        message=first.message,
        by="1 is too many",
    )
    return gated(report, FAILED, check)


def many(number: int) -> Report:
    """A report with ``number`` overflows, layer0 to the last, at line 1 and on."""
    births = tuple(
        birth(
            f"layer{i}",
            id=i,
            order=10 + i,
            source=source(i + 1, f"x = self.layer{i}(x)", f"{REPOSITORY}/src/model.py"),
            parents=(),
        )
        for i in range(number)
    )
    bad = candidate(loss=math.nan, parameters=(parameter("w", nan=100, absmax=None),))
    modules = tuple(module(f"layer{i}") for i in range(number))
    return diagnose(
        trace(births=births, modules=modules, passes=(reference(), bad)), config=f"{REPOSITORY}/sub/t5.yaml"
    )

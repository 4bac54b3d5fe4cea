"""A gate's word on a report, as the lines of a Markdown report that come after its verdict."""

from __future__ import annotations

from collections.abc import Iterator

from ampdoctor.diagnose.gate_result import FAILED, NOT_MEASURED, PASSED, UNUSABLE, Check, GateResult
from ampdoctor.diagnose.report import Report
from ampdoctor.diagnose.wording import count_words, place
from ampdoctor.render.findings_text import waiver_words
from ampdoctor.render.markdown_words import code, escaped
from ampdoctor.render.options import Options
from ampdoctor.render.places import source_words

STATUS_WORDS = {PASSED: "passed", FAILED: "failed", NOT_MEASURED: "not measured", UNUSABLE: "not run"}
_MOST = 20
"""Checks and what is gone; findings below say the rest."""


def gate_lines(report: Report, gate: GateResult, options: Options) -> Iterator[str]:
    """Passed or not, each check that fails, what is gone, and waivers that do nothing any more."""
    lines = [
        *(_check(check, options) for check in gate.checks[:_MOST]),
        *(f"gone since the baseline: {escaped(what)}" for what in gate.gone[:_MOST]),
        *(f"waiver {escaped(waiver_words(w))}" for w in report.waivers if w.state != "used"),
        *(escaped(note) for note in gate.notes),
    ]
    yield f"**Gate {STATUS_WORDS[gate.status]}**{_amount(gate)}"
    if lines:
        yield ""
        yield from (f"- {line}" for line in lines)


def _amount(gate: GateResult) -> str:
    if gate.status == FAILED:
        return f": {count_words(len(gate.checks), 'check')}"
    if gate.checks:
        return f": {count_words(len(gate.checks), 'limit')} could not be checked"
    return ""


def _check(check: Check, options: Options) -> str:
    """``AMP101 forward overflow: 6.1 % past 65,504 · `blocks.1.ff.wo` · `src/t5.py:28` ``."""
    by = f": {check.by}" if check.by else ""
    where = code(check.subject or (place("") if check.op else ""))
    at = code(source_words(check.source, options))
    return " · ".join(part for part in (escaped(f"{check.code} {check.title}{by}"), where, at) if part)

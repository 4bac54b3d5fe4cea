"""Why a report does not pass, as the message of a failed test: the reason, the first fault, the findings."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from ampdoctor.diagnose.report import Report
from ampdoctor.diagnose.wording import place
from ampdoctor.render.findings_text import findings_section
from ampdoctor.render.options import Options
from ampdoctor.render.terminal import as_text
from ampdoctor.render.text import environment_words, fault_lines, labelled
from ampdoctor.render.words import words


def render_failure(report: Report, options: Options) -> str:
    """The reason in one line, for test runners that show no more; then what the terminal shows of it."""
    parts: list[RenderableType] = []
    for section in _sections(report, options):
        parts += [Text(""), section]
    return f"{_reason(report)}\n{as_text(Group(*parts), options)}"


def _reason(report: Report) -> str:
    """The verdict; where that is fine, the first thing that the gate wants otherwise."""
    checks = report.gate.checks if report.gate is not None else ()
    if report.verdict != "clean" or not checks:
        return report.sentence
    first = checks[0]
    # What could not be checked names itself, and where it was looked for.
    where = f"{place(first.module)}: " if first.module and first.measured is not None else ""
    return f"{where}{first.message}"


def _sections(report: Report, options: Options) -> Iterator[RenderableType]:
    if report.first_fault is not None:
        yield labelled(fault_lines(report.first_fault, options))
    urgent = [finding for finding in report.findings if finding.severity != "info"]
    if urgent:
        yield labelled([("Findings", findings_section(urgent))])
    gate = report.gate
    if gate is not None and gate.status == "not-measured" and len(gate.checks) > 1:
        yield labelled([("Unchecked", Group(*(words(check.message) for check in gate.checks)))])
    yield labelled([("Run", words(environment_words(report.environment, options)))])

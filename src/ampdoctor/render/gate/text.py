"""The gate at 80 columns: a short verdict per config, what fails and by how much, one table for them all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ampdoctor.diagnose.gate_result import FAILED, NOT_MEASURED, PASSED, UNUSABLE, Check, GateResult
from ampdoctor.diagnose.report import Report
from ampdoctor.diagnose.wording import count_words, place
from ampdoctor.facts.words import GateStatus
from ampdoctor.render.findings_text import accepted_words, waivers_section
from ampdoctor.render.options import Options
from ampdoctor.render.places import subject
from ampdoctor.render.terminal import as_text
from ampdoctor.render.text import environment_words, labelled
from ampdoctor.render.words import shortened, source_path, words

_MOST = 10
_NAME_WIDTH = 30
_VERDICT_WIDTH = 18
"""``gradient-underflow``, the longest but one."""

_WORDS: dict[GateStatus, tuple[str, str]] = {
    PASSED: ("PASSED", "bold green"),
    FAILED: ("FAILED", "bold red"),
    NOT_MEASURED: ("NOT MEASURED", "bold yellow"),
    UNUSABLE: ("NOT RUN", "bold yellow"),
}


def render(reports: Sequence[Report], options: Options) -> str:
    """Lines of at most ``options.width`` columns, with a newline at the end."""
    parts: list[RenderableType] = []
    for report in reports:
        if report.gate is not None:
            parts += [*_one(report, report.gate, options), Text("")]
    if len(reports) > 1:
        parts += [_summary(reports, options), Text(""), _count(reports)]
    else:
        parts.pop()
    return as_text(Padding(Group(*parts), (0, 0, 0, 1)), options)


def _one(report: Report, gate: GateResult, options: Options) -> Iterator[RenderableType]:
    yield words(("ampdoctor gate", "bold"), "  ", subject(report, options))
    if facts := environment_words(report.environment, options):
        yield words((facts, "dim"))
    word, style = _WORDS[gate.status]
    yield words((word, style), "  ", gate.reason or _headline(report, gate))
    rows = list(_rows(report, gate, options))
    if rows:
        yield labelled(rows)


def _headline(report: Report, gate: GateResult) -> str:
    if gate.status == PASSED:
        return report.sentence
    if gate.status == FAILED:
        return f"{count_words(len(gate.checks), 'check')}. {report.sentence}"
    return f"{count_words(len(gate.checks), 'limit')} could not be checked."


def _rows(report: Report, gate: GateResult, options: Options) -> Iterator[tuple[str, RenderableType]]:
    if gate.checks:
        label = "Failed" if gate.status == FAILED else "Unchecked"
        yield label, Group(*_checks(gate.checks, options))
    accepted = [accepted_words(f, f.accepted) for f in report.findings if f.accepted is not None]
    if accepted:
        more = len(accepted) - _MOST
        rest = [words(f"and {more:,} more: --format json lists all")] if more > 0 else []
        yield "Accepted", Group(*accepted[:_MOST], *rest)
    if any(waiver.state != "used" for waiver in report.waivers):
        yield "Waivers", waivers_section(report.waivers)
    if gate.gone:
        yield "Gone", Group(*(words(what) for what in gate.gone))
    if gate.baseline:
        yield "Baseline", words(gate.baseline)
    if gate.notes:
        yield "Note", Group(*(words(note, style="dim") for note in gate.notes))


def _checks(checks: Sequence[Check], options: Options) -> Iterator[RenderableType]:
    for check in checks[:_MOST]:
        where = check.subject or (place("") if check.op else "")
        at = source_path(check.source, options) if check.source is not None else ""
        by = f": {check.by}" if check.name in ("finding", "worse") and check.by else ""
        head = "   ".join(part for part in (check.title + by, where, at) if part)
        yield words((check.code, "red"), " ", head)
        yield Padding(words(check.message), (0, 0, 0, 2))
    if len(checks) > _MOST:
        yield words(f"and {len(checks) - _MOST:,} more: --format json lists all")


def _summary(reports: Sequence[Report], options: Options) -> Table:
    width = min(_NAME_WIDTH, 1 + max(len(subject(report, options)) for report in reports))
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=width, no_wrap=True, overflow="crop")
    table.add_column(min_width=_VERDICT_WIDTH, no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(Text("Summary", "bold"), Text("verdict", "dim"), Text("gate", "dim"))
    for report in reports:
        if report.gate is None:
            continue
        word, style = _WORDS[report.gate.status]
        detail = _first(report.gate)
        table.add_row(
            words(" " + shortened(subject(report, options), width - 1, options)),
            words(report.verdict if not report.gate.reason else "-"),
            words((word, style), f"  {detail}" if detail else ""),
        )
    return table


def _first(gate: GateResult) -> str:
    """What failed first, in a few words, or why nothing was judged, or how much is accepted."""
    if not gate.checks:
        return gate.reason or (f"{gate.accepted:,} accepted" if gate.accepted else "")
    check = gate.checks[0]
    more = f" +{len(gate.checks) - 1}" if len(gate.checks) > 1 else ""
    return f"{check.code} {check.subject}".rstrip() + more


def _count(reports: Sequence[Report]) -> Text:
    """``3 configs: 1 passed, 1 failed, 1 not run.``"""
    statuses = [report.gate.status for report in reports if report.gate is not None]
    counts = ((statuses.count(status), word) for status, (word, _) in _WORDS.items())
    parts = ", ".join(f"{n:,} {word.lower()}" for n, word in counts if n)
    return words(f"{count_words(len(statuses), 'config')}: {parts}.")

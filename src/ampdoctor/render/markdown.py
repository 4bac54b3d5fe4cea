"""The report as GitHub-flavoured Markdown: for a job's summary or a comment on a pull request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ampdoctor.diagnose.report import Finding, FirstFault, Report
from ampdoctor.diagnose.wording import count_words, listing, place
from ampdoctor.render.fault_text import fault_rows
from ampdoctor.render.findings_text import accepted_words
from ampdoctor.render.gate_markdown import STATUS_WORDS, gate_lines
from ampdoctor.render.layer_columns import COLUMNS, name_of, shown_rows
from ampdoctor.render.loss_scale_text import (
    configured_words,
    judgement,
    limit_lines,
    settling_lines,
    window_parts,
)
from ampdoctor.render.markdown_words import cell_code, code, escaped, table
from ampdoctor.render.options import Options
from ampdoctor.render.places import source_words, subject
from ampdoctor.render.run_up_columns import HEADS, cells
from ampdoctor.render.text import environment_words, loss_parts

_MOST_FINDINGS = 100
"""Of one report: GitHub cuts a job's summary off at 1 MiB, and a finding takes about 1 kB."""
_UNBROKEN = 1_000_000
"""Columns: Markdown wraps by itself."""


def render(report: Report, options: Options) -> str:
    """The report under one heading, with a newline at its end."""
    return "\n".join(_document(report, options)) + "\n"


def render_many(reports: Sequence[Report], options: Options) -> str:
    """A table with a row per report, then each report; one report is shown as it is."""
    if len(reports) == 1:
        return render(reports[0], options)
    gated = any(report.gate is not None for report in reports)
    overview = table(
        ("Scanned", *(("Gate",) if gated else ()), "Verdict", "Errors", "Warnings", "First fault"),
        (_overview(report, options, gated) for report in reports),
        "llrrl" if not gated else "lllrrl",
    )
    lines = [f"## ampdoctor: {count_words(len(reports), 'scan')}", "", *overview]
    return "\n".join(lines) + "\n\n" + "\n".join(render(report, options) for report in reports)


def _overview(report: Report, options: Options, gated: bool) -> tuple[str, ...]:
    severities = [finding.severity for finding in report.findings]
    fault = report.first_fault
    where = cell_code(fault.tensor or place(fault.module)) if fault else ""
    counts = (str(severities.count(severity)) for severity in ("error", "warning"))
    status = f"**{STATUS_WORDS[report.gate.status]}**" if report.gate is not None else ""
    gate = (status,) if gated else ()
    return (cell_code(subject(report, options)), *gate, escaped(report.verdict), *counts, where)


def _document(report: Report, options: Options) -> Iterator[str]:
    yield f"## ampdoctor: {code(subject(report, options))}"
    yield ""
    yield f"**{escaped(report.headline.head)}** {escaped(report.headline.rest)}".rstrip()
    if report.gate is not None:
        yield ""
        yield from gate_lines(report, report.gate, options)
    if facts := environment_words(report.environment, options):
        yield ""
        yield escaped(facts)
    if report.first_fault is not None:
        yield ""
        yield from _fault(report.first_fault, options)
    if len(report.run_up) > 1:
        yield ""
        yield from _run_up(report)
    yield from _losses(report)
    yield from _findings(report, options)
    if report.layers:
        yield from _layers(report, options)
    if report.not_seen:
        yield ""
        yield f"Not seen: {escaped('; '.join(report.not_seen))}."
    if report.interrupted:
        yield ""
        yield "Interrupted: this is what was seen until then."


def _fault(fault: FirstFault, options: Options) -> list[str]:
    rows: list[tuple[str, list[str]]] = []
    unbroken = replace(options, width=_UNBROKEN, base=options.root or options.base)
    for label, parts in fault_rows(fault, unbroken):
        if label or not rows:
            rows.append((label, []))
        rows[-1][1].append(_apart(part.plain for part in parts))
    return table(("First fault", ""), ((f"**{label}**", "<br>".join(body)) for label, body in rows), "ll")


def _apart(parts: Iterable[str]) -> str:
    """The parts, with dots between them."""
    return escaped(" · ".join(parts))


def _run_up(report: Report) -> list[str]:
    rows = []
    for row in report.run_up:
        name = cell_code(place(row.module))
        rows.append((f"**{name}**" if row.here else name, *cells(row)))
    return table(HEADS, rows, "lrrr")


def _losses(report: Report) -> Iterator[str]:
    """The losses and what is known of loss scales, as a list."""
    lines = [f"**Loss** {_apart(loss_parts(report))}"] if report.losses else []
    if report.passes and not report.environment.forward_only:
        lines.append(f"**Loss scale** {configured_words(report.loss_scale)}: {escaped(judgement(report))}")
        lines += [escaped(line) for line in settling_lines(report.loss_scale)]
        if window := window_parts(report.loss_scale):
            lines.append(_apart(("works", *window)))
        lines += [escaped(line) for line in limit_lines(report.loss_scale)]
    if lines:
        yield ""
        yield from (f"- {line}" for line in lines)


def _findings(report: Report, options: Options) -> Iterator[str]:
    """Those that ask for action one by one, information a line per rule."""
    urgent = [finding for finding in report.findings if finding.severity != "info"]
    if report.findings:
        yield ""
        yield "### Findings"
    for finding in urgent[:_MOST_FINDINGS]:
        yield ""
        yield from _in_full(finding, options)
    if len(urgent) > _MOST_FINDINGS:
        yield ""
        yield f"And {len(urgent) - _MOST_FINDINGS} more: the JSON report lists all."
    accepted = [accepted_words(f, f.accepted).plain for f in report.findings if f.accepted is not None]
    by_code: dict[str, list[Finding]] = {}
    for finding in report.findings:
        if finding.severity == "info" and finding.accepted is None:
            by_code.setdefault(finding.code, []).append(finding)
    if accepted or by_code:
        yield ""
    yield from (f"- {escaped(words)}" for words in accepted[:_MOST_FINDINGS])
    for group in by_code.values():
        first = group[0]
        if len(group) == 1:
            text = (f"{code(first.module)}: " if first.module else "") + escaped(first.message)
        else:
            text = f"{first.title}: {listing([code(place(f.module)) for f in group])}"
        yield f"- info {first.code} {text}"


def _in_full(finding: Finding, options: Options) -> Iterator[str]:
    where = code(place(finding.module)) if finding.module or finding.op else ""
    at = code(source_words(finding.source, options))
    head = f"**{finding.severity} {finding.code} {escaped(finding.title)}**"
    yield "- " + " · ".join(part for part in (head, where, at) if part)
    advice = f"{escaped(finding.remedy)} `ampdoctor explain {finding.code}`"
    for paragraph in (escaped(finding.message), advice):
        yield ""
        yield f"  {paragraph.strip()}"


def _layers(report: Report, options: Options) -> Iterator[str]:
    """The worst few, or all in the model's own order, folded in."""
    heading, rows = shown_rows(report, options.all_layers)
    cells = (
        (f"{cell_code(name_of(row))} {escaped(row.type)}", *(column.cell(row) for column in COLUMNS))
        for row in rows
    )
    yield ""
    yield f"<details><summary>{heading}</summary>"
    yield ""
    yield from table(("Module", *(column.head for column in COLUMNS)), cells, "l" + "r" * len(COLUMNS))
    yield ""
    yield "</details>"

"""What was found in a script that ran: the sentence, the loop's findings, the steps that were examined."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from ampdoctor.diagnose.run_report import RunReport
from ampdoctor.diagnose.wording import number, scale
from ampdoctor.render.findings_text import findings_section
from ampdoctor.render.options import Options
from ampdoctor.render.terminal import as_text
from ampdoctor.render.text import document as report_document
from ampdoctor.render.text import labelled
from ampdoctor.render.words import headline_words, words


def render(report: RunReport, options: Options) -> str:
    """The report as lines of at most ``options.width`` columns, with a newline at its end."""
    return as_text(document(report, options), options)


def document(report: RunReport, options: Options) -> RenderableType:
    """The report as something rich can print or export."""
    own = Padding(Group(*_own(report)), (0, 0, 0, 1))
    parts: list[RenderableType] = [own]
    for examined in report.examined:
        name = f", {examined.name}" if examined.name else ""
        parts.append(Padding(words((f"Step {examined.step:,}, {examined.why}{name}", "bold")), (1, 0, 0, 1)))
        parts.append(report_document(examined.report, options))
    return Group(*parts)


def _own(report: RunReport) -> Iterator[RenderableType]:
    yield words(("ampdoctor run", "bold"), "  ", report.script)
    yield Text("")
    yield headline_words(report.headline, "bold green" if report.sound else "bold red")
    rows = list(_timeline(report))
    if rows:
        yield Text("")
        yield labelled(rows)
    if report.findings:
        yield Text("")
        yield labelled([("Findings", findings_section(report.findings))])
    if report.stopped:
        yield words(f"Stopped: {report.stopped}.")
    if report.not_seen:
        yield words("Not seen: " + "; ".join(report.not_seen) + ".", style="dim")


def _timeline(report: RunReport) -> Iterator[tuple[str, RenderableType]]:
    losses = [m.loss for m in report.timeline if m.loss is not None]
    scales = [m.scale for m in report.timeline if m.scale is not None]
    if losses:
        yield "Loss", words(f"{number(losses[0])} in the first step, {number(losses[-1])} in the last")
    if scales:
        lowest, highest = scale(min(scales)), scale(max(scales))
        between = f" (between {lowest} and {highest})" if len(set(scales)) > 1 else ""
        yield "Loss scale", words(f"{scale(scales[0])} at first, {scale(scales[-1])} at last{between}")

"""Results as text: one table of formats for all commands. A format is its file and its row here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ampdoctor.diagnose.report import Report
from ampdoctor.diagnose.run_report import RunReport
from ampdoctor.diagnose.scaler_report import ScalerReport
from ampdoctor.remedy.prescription import Prescription
from ampdoctor.render import (
    gate,
    github,
    gradients,
    html,
    json_report,
    junit,
    markdown,
    prescription,
    run,
    sarif,
    scaler,
    text,
)
from ampdoctor.render.gradients.page import Page
from ampdoctor.render.options import Options

Render = Callable[[Report, Options], str]
RenderMany = Callable[[Sequence[Report], Options], str]


@dataclass(frozen=True)
class Format:
    """What a format can hold, each a function to text. None: it does not hold that."""

    report: Render | None = None
    """Of ``scan`` and ``report``: one scan."""
    reports: RenderMany | None = None
    """Several scans in one document; of other formats each is a document of its own."""
    gate: RenderMany | None = None
    """Of ``gate``, where that has words of its own; else it is ``reports``: a judged report shows itself."""
    scaler: Callable[[ScalerReport, Options], str] | None = None
    gradients: Callable[[Page, Options], str] | None = None
    """Of ``grad-histogram``."""
    run: Callable[[RunReport, Options], str] | None = None
    """Of ``run``, where that has words of its own; else it is ``reports``, of the steps examined."""
    prescription: Callable[[Prescription, Options], str] | None = None
    package: str = ""
    """One that it needs and ampdoctor does not: the extra of the format's name brings it."""


TABLE: dict[str, Format] = {
    "text": Format(
        text.render,
        gate=gate.render_text,
        scaler=scaler.render_text,
        gradients=gradients.render_text,
        run=run.render_text,
        prescription=prescription.render_text,
    ),
    "json": Format(
        json_report.render,
        gate=gate.render_json,
        scaler=scaler.render_json,
        gradients=gradients.render_json,
        run=run.render_json,
        prescription=prescription.render_json,
    ),
    "markdown": Format(markdown.render, markdown.render_many),
    "github": Format(github.render, github.render_many),
    "junit": Format(junit.render, junit.render_many, package="junitparser"),
    "sarif": Format(sarif.render, sarif.render_many),
    "html": Format(html.render, html.render_many, run=html.render_run),
    "csv": Format(gradients=gradients.render_csv),
}


def _run_of(written: Format) -> Callable[[RunReport, Options], str] | None:
    """How a run is written in this format: the loop's findings stand in the first examined step's report."""
    one, many = written.report, written.reports
    if written.run is not None or one is None or many is None:
        return written.run

    def render(report: RunReport, options: Options) -> str:
        reports = report.as_reports()
        return one(reports[0], options) if len(reports) == 1 else many(reports, options)

    return render


FORMATS = {name: f.report for name, f in TABLE.items() if f.report}
MANY = {name: f.reports for name, f in TABLE.items() if f.reports}
GATE = {name: many for name, f in TABLE.items() if (many := f.gate or f.reports)}
SCALER = {name: f.scaler for name, f in TABLE.items() if f.scaler}
RUN = {name: of_run for name, f in TABLE.items() if (of_run := _run_of(f))}
GRADIENTS = {name: f.gradients for name, f in TABLE.items() if f.gradients}
PRESCRIPTION = {name: f.prescription for name, f in TABLE.items() if f.prescription}

__all__ = [
    "FORMATS",
    "GATE",
    "GRADIENTS",
    "MANY",
    "PRESCRIPTION",
    "RUN",
    "SCALER",
    "TABLE",
    "Format",
    "Options",
    "Render",
    "RenderMany",
]

"""Reports as text: one file per format, listed by hand. A format is its file and its line here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ampdoctor.diagnose.report import Report
from ampdoctor.render import json_report, text
from ampdoctor.render.options import Options

Render = Callable[[Report, Options], str]
RenderMany = Callable[[Sequence[Report], Options], str]

FORMATS: dict[str, Render] = {
    "text": text.render,
    "json": json_report.render,
}

MANY: dict[str, RenderMany] = {}
"""Formats that hold several reports in one document; of the others each report is one of its own."""

__all__ = ["FORMATS", "MANY", "Options", "Render", "RenderMany"]

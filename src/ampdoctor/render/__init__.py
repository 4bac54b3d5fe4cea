"""Reports as text: one file per format, listed by hand. A format is its file and its line here."""

from __future__ import annotations

from collections.abc import Callable

from ampdoctor.diagnose.report import Report
from ampdoctor.render import json_report, text
from ampdoctor.render.options import Options

Render = Callable[[Report, Options], str]

FORMATS: dict[str, Render] = {
    "text": text.render,
    "json": json_report.render,
}

__all__ = ["FORMATS", "Options", "Render"]

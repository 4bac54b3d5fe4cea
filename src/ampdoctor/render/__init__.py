"""Reports as text: one file per format, listed by hand. A format is its file and its line here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ampdoctor.diagnose.report import Report
from ampdoctor.render import github, html, json_report, junit, markdown, sarif, text
from ampdoctor.render.options import Options

Render = Callable[[Report, Options], str]
RenderMany = Callable[[Sequence[Report], Options], str]

FORMATS: dict[str, Render] = {
    "text": text.render,
    "json": json_report.render,
    "markdown": markdown.render,
    "github": github.render,
    "junit": junit.render,
    "sarif": sarif.render,
    "html": html.render,
}

MANY: dict[str, RenderMany] = {
    "markdown": markdown.render_many,
    "github": github.render_many,
    "junit": junit.render_many,
    "sarif": sarif.render_many,
    "html": html.render_many,
}
"""Formats that hold several reports in one document; of the others each report is one of its own."""

REQUIRES = {"junit": "junitparser"}
"""Packages that a format needs and ampdoctor does not: the extra of the format's name brings them."""

__all__ = ["FORMATS", "MANY", "REQUIRES", "Options", "Render", "RenderMany"]

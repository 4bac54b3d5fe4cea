"""The report as HTML: templates filled in, and one file that asks no other for anything."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ampdoctor.diagnose.report import Report
from ampdoctor.diagnose.run_report import RunReport
from ampdoctor.diagnose.wording import count_words, number, percent, place, power, scale, short_op
from ampdoctor.render.fault_text import operand_words, value_lines
from ampdoctor.render.findings_text import waiver_words
from ampdoctor.render.html import view
from ampdoctor.render.html.charts import gradient_chart, sweep_chart
from ampdoctor.render.html.timeline import timeline
from ampdoctor.render.layer_columns import COLUMNS, left, name_of
from ampdoctor.render.loss_scale_text import (
    configured_words,
    judged_word,
    judgement,
    limit_lines,
    settling_lines,
)
from ampdoctor.render.ops_text import casts_sentence, moved, op_name
from ampdoctor.render.options import Options
from ampdoctor.render.places import source_words
from ampdoctor.render.run_up_columns import cells
from ampdoctor.render.text import environment_words, loss_parts
from ampdoctor.render.words import plain

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_TEMPLATES = "templates"
_ROWS = 20
"""Rows of a table that are shown at once; a button shows the rest."""
_TONE = {"clean": "good", "not-measured": "unsure"}


def render(report: Report, options: Options) -> str:
    """A whole page: style, script and pictures are in it, and its policy lets it load nothing."""
    return render_many([report], options)


def render_many(reports: Sequence[Report], options: Options) -> str:
    """One page with every report in it, under a list of what they say where there are several."""
    views = [_view(report, options) for report in reports]
    first = f"{views[0]['head']} {views[0]['environment'].title}"
    title = first if len(views) == 1 else f"{len(views)} scans"
    return _page(title, views, [_body(view) for view in views])


def render_run(report: RunReport, options: Options) -> str:
    """One page: the run with its curves and what is wrong in its loop, then each step that was examined."""
    view = {
        **_common(report, options),
        "timeline": timeline(report.timeline),
        "examined": report.examined,
        "tone": "good" if report.sound else "bad" if report.done else "unsure",
        "fault": None,
    }
    bodies = [_filled("run.html", view), *(_body(_view(e.report, options)) for e in report.examined)]
    return _page(f"{view['head']} {report.script}", [], bodies)


def _page(title: str, views: Sequence[Mapping[str, Any]], bodies: Sequence[Markup]) -> str:
    script = _asset("page.js")
    return (
        _templates()
        .get_template("page.html")
        .render(
            title=f"{title} · ampdoctor",
            views=views,
            bodies=bodies,
            css=_asset("page.css"),
            script=script,
            digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        )
    )


def fragment(report: Report, options: Options | None = None) -> str:
    """The same without the page around it, for a notebook: its style holds for itself alone."""
    body = _body(_view(report, options or Options()))
    template = _templates().get_template("fragment.html")
    return template.render(body=body, css=_asset("page.css"), script=_asset("page.js"))


def _body(view: Mapping[str, Any]) -> Markup:
    return _filled("report.html", view)


def _filled(template: str, view: Mapping[str, Any]) -> Markup:
    from markupsafe import Markup

    return Markup(_templates().get_template(template).render(view))


def _common(report: Report | RunReport, options: Options) -> dict[str, Any]:
    """What the templates of a scan and of a run both name."""
    return {
        "report": report,
        "head": report.headline.head,
        "rest": report.headline.rest,
        "excerpt": options.excerpt,
        "at": lambda source: source_words(source, options),
    }


def _view(report: Report, options: Options) -> dict[str, Any]:
    """Everything that the templates name."""
    return {
        **_common(report, options),
        "fault": report.first_fault,
        "ops": report.ops if options.ops else (),
        "environment": report.environment,
        "where": environment_words(report.environment, options),
        "tone": _TONE.get(report.verdict, "bad"),
        "sweep": sweep_chart(report),
        "gradients": gradient_chart(report),
        "rows": _ROWS,
    }


@cache
def _templates() -> Environment:
    # imported here: torch brings it along, and commands that draw no page start without it
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("ampdoctor.render.html", _TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "number": number,
        "percent": percent,
        "place": place,
        "scale": scale,
        "power": power,
        "sentence": view.sentence,
        "breakable": _breakable,
        "short_op": short_op,
        "figure": view.figure,
        "operand": operand_words,
        "name_of": name_of,
    }
    environment.globals |= {
        "value_lines": value_lines,
        "stops": view.stops,
        "ends": view.ends,
        "cards": view.cards,
        "columns": COLUMNS,
        "left": left,
        "op_name": op_name,
        "moved": moved,
        "casts_sentence": casts_sentence,
        "run_up_cells": cells,
        "judgement": judgement,
        "configured_words": configured_words,
        "settling_lines": settling_lines,
        "judged_word": judged_word,
        "limit_lines": limit_lines,
        "loss_parts": loss_parts,
        "count_words": count_words,
        "waiver_words": waiver_words,
        "parameter_rows": view.parameter_rows,
    }
    return environment


def _printable(value: Any) -> Any:
    """User strings with their control characters written out; what is markup already stays."""
    return plain(value) if type(value) is str else value


def _breakable(name: str) -> Markup:
    """The name as markup that may be broken after a slash or a dot, where a narrow screen has to break it."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"(/|\.(?!py\b))(?=\w)", r"\1<wbr>", str(escape(plain(name)))))


@cache
def _asset(name: str) -> Markup:
    """A file that goes into the page as it is."""
    from markupsafe import Markup

    return Markup(files("ampdoctor.render.html").joinpath(_TEMPLATES, name).read_text(encoding="utf-8"))

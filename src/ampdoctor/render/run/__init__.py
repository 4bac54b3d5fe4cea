"""What was found in a script that ran, as text: one format, one function."""

from __future__ import annotations

import json
from collections.abc import Callable

from ampdoctor.diagnose.run_report import RunReport
from ampdoctor.render import FORMATS as OF_REPORTS
from ampdoctor.render import MANY
from ampdoctor.render.options import Options
from ampdoctor.render.run import text

Render = Callable[[RunReport, Options], str]


def as_json(report: RunReport, options: Options) -> str:
    """The document ``ampdoctor.run/1``, indented, in ASCII, with a newline at its end."""
    return json.dumps(report.to_dict(), indent=2, allow_nan=False) + "\n"


def _through(name: str) -> Render:
    """A format of reports: the examined steps, with the loop's findings in the first."""

    def render(report: RunReport, options: Options) -> str:
        reports = report.as_reports()
        if len(reports) == 1:
            return OF_REPORTS[name](reports[0], options)
        return MANY[name](reports, options)

    return render


FORMATS: dict[str, Render] = {
    "text": text.render,
    "json": as_json,
    **{name: _through(name) for name in MANY},
}

"""The report as the documented JSON document ``ampdoctor.report/1``."""

from __future__ import annotations

import json

from ampdoctor.diagnose.report import Report
from ampdoctor.render.options import Options


def render(report: Report, options: Options) -> str:
    """The document, indented, in ASCII, with a newline at its end."""
    return json.dumps(report.to_dict(), indent=2, allow_nan=False) + "\n"

"""What was found in a script that ran, as the document ``ampdoctor.run/1``."""

from __future__ import annotations

import json

from ampdoctor.diagnose.run_report import RunReport
from ampdoctor.render.options import Options


def render(report: RunReport, options: Options) -> str:
    """Indented, in ASCII, with a newline at its end."""
    return json.dumps(report.to_dict(), indent=2, allow_nan=False) + "\n"

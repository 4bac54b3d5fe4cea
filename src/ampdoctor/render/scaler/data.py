"""What a loss scaler did, as the document ``ampdoctor.scaler/1``."""

from __future__ import annotations

import json

from ampdoctor.diagnose.scaler_report import ScalerReport
from ampdoctor.render.options import Options


def render(report: ScalerReport, options: Options) -> str:
    """Indented, in ASCII, with a newline at its end."""
    return json.dumps(report.to_dict(), indent=2, allow_nan=False) + "\n"

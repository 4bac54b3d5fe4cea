"""What a loss scaler did, as text and as JSON: a format is its file and its line here."""

from __future__ import annotations

import json
from collections.abc import Callable

from ampdoctor.diagnose.scaler_report import ScalerReport
from ampdoctor.render.options import Options
from ampdoctor.render.scaler import text

Render = Callable[[ScalerReport, Options], str]


def as_json(report: ScalerReport, options: Options) -> str:
    """The document ``ampdoctor.scaler/1``, indented, in ASCII, with a newline at its end."""
    return json.dumps(report.to_dict(), indent=2, allow_nan=False) + "\n"


FORMATS: dict[str, Render] = {"text": text.render, "json": as_json}

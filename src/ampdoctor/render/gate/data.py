"""The gate as the JSON document ``ampdoctor.gate/1``: its word, and every report with its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ampdoctor.diagnose.gate_result import worst_status
from ampdoctor.diagnose.report import Report
from ampdoctor.render.options import Options

SCHEMA = "ampdoctor.gate/1"


def render(reports: Sequence[Report], options: Options) -> str:
    """The document, indented, in ASCII, with a newline at its end; the same for one config and for many."""
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "status": worst_status(report.gate.status for report in reports if report.gate is not None),
        "reports": [report.to_dict() for report in reports],
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"

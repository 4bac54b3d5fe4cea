"""The summary page of a GitHub job: the reports in full, next to annotations that only hold the worst."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ampdoctor.cli.output import drawing
from ampdoctor.diagnose.report import Report
from ampdoctor.errors import ConfigError

_VARIABLE = "GITHUB_STEP_SUMMARY"


def append_job_summary(reports: Sequence[Report], all_layers: bool) -> None:
    """Nothing; on GitHub the reports stand in the job's summary, as Markdown, after what is there already."""
    file = os.environ.get(_VARIABLE)
    if not file:
        return
    from ampdoctor.render import MANY

    options = drawing(Path(file), all_layers, [report.config for report in reports])
    document = MANY["markdown"](reports, options)
    try:
        with Path(file).open("a", encoding="utf-8") as summary:
            summary.write(document)
    except OSError as error:
        raise ConfigError(f"cannot write to ${_VARIABLE}: {error.strerror or error}") from error

"""Runs training scripts under ampdoctor, in this process, for tests."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ampdoctor.api.script_run import Wanted, run_script
from ampdoctor.diagnose.policy import Policy
from ampdoctor.diagnose.run_report import RunReport
from ampdoctor.load.script.program import Ended, Program


def run(script: Path, *arguments: str, **wanted: Any) -> tuple[RunReport, Ended, str]:
    """The report, how the script ended, and what it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        report, ended, _ = run_script(Program(str(script), arguments), Wanted(**wanted), Policy())
    return report, ended, printed.getvalue()


def urgent(report: RunReport) -> list[str]:
    """Codes of errors and warnings, the loop's and those of examined steps."""
    return [f.code for f in report.all_findings if f.severity != "info" and not f.code.startswith("AMP9")]


def lines(report: RunReport, codes: Sequence[str] = ()) -> list[str]:
    """The text of the lines that errors and warnings (of these codes) name."""
    return [
        f.source.text
        for f in report.all_findings
        if f.source is not None and f.severity != "info" and (not codes or f.code in codes)
    ]

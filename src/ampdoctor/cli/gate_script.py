"""A training script before the gate: run, its loop watched, its steps examined, as reports to judge."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ampdoctor.cli.failure import say
from ampdoctor.cli.user_output import user_output_to_stderr
from ampdoctor.cli.workloads import Script
from ampdoctor.diagnose.policy import Policy
from ampdoctor.diagnose.report import Report
from ampdoctor.errors import ProbeError


def script_reports(
    script: Script, steps: int | None, overrides: Sequence[str], policy: Policy
) -> tuple[Report, ...]:
    """A report for each loss that was examined; what is wrong in the loop is in the first.

    Raises ProbeError for a script that raised where nothing of ours says why, KeyboardInterrupt after Ctrl-C.
    """
    from ampdoctor.api.script_run import Wanted, run_script

    wanted = Wanted(steps, script.step, overrides=tuple(overrides))
    with user_output_to_stderr():
        report, ended, _ = run_script(script.program, wanted, policy)
        sys.stdout.flush()
    if ended.interrupted:
        raise KeyboardInterrupt
    if ended.status and not any(f.severity == "error" for f in report.all_findings):
        raise ProbeError(report.stopped, "", ended.said)
    if ended.said:
        say(ended.said)
    return report.as_reports()

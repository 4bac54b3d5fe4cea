"""``ampdoctor replay``: the recorded step of a bundle, run again and examined; the scan's report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ampdoctor.cli.clock import today
from ampdoctor.cli.exits import FAILED, Stop
from ampdoctor.cli.failure import say
from ampdoctor.cli.output import check_writable
from ampdoctor.cli.progress import progress_bar
from ampdoctor.cli.scan import save_trace
from ampdoctor.cli.shared_options import Debug, Overrides, PlanFile, Quiet
from ampdoctor.cli.sinks import FORMAT_HELP, OUTPUT_HELP, emit, sinks_of
from ampdoctor.cli.user_output import user_output_to_stderr


def replay(
    bundle: Annotated[
        Path, typer.Argument(help="A folder that a flight recorder wrote.", show_default=False)
    ],
    model: Annotated[
        str | None,
        typer.Option(help="file.py:name of what builds the model, where the bundle cannot build it."),
    ] = None,
    set_: Overrides = None,
    plan: PlanFile = None,
    format_: Annotated[str, typer.Option("--format", help=FORMAT_HELP)] = "text",
    output: Annotated[
        list[str] | None, typer.Option("--output", "-o", metavar="[FORMAT=]FILE", help=OUTPUT_HELP)
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="Keep the trace, for `ampdoctor report` (.json or .json.gz).")
    ] = None,
    all_layers: Annotated[bool, typer.Option("--all-layers", help="Show every layer.")] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Run a recorded step again, and find where its first bad value is born.

    What was recorded, what differs here, and whether the fault shows here too is on stderr.
    """
    sinks = sinks_of(format_, output)
    check_writable(save, "--save")
    from ampdoctor.api.bundle_load import bundled, differences
    from ampdoctor.api.request import plan_of, policy_of
    from ampdoctor.diagnose.engine import diagnose
    from ampdoctor.diagnose.replay import not_reproduced, why_recorded
    from ampdoctor.probe.scan import probe
    from ampdoctor.remedy.plan import TreatmentPlan, check_paths
    from ampdoctor.remedy.plan_file import read_plan
    from ampdoctor.remedy.treatment_runs import treated

    treatment = TreatmentPlan() if plan is None else read_plan(plan)
    with user_output_to_stderr(), progress_bar(quiet) as progress:
        progress("loading", 0, 1)
        with bundled(bundle, model, set_ or []) as (workload, settings, recorded):
            policy = policy_of(settings, today())
            check_paths(treatment, (path for path, _ in workload.model.named_modules()))
            # before the step is run: what was recorded may be what ends this process, too
            others = differences(recorded, settings)
            trace = probe(workload, treated(plan_of(settings), treatment), progress)
    say(f"recorded: {recorded.script}, {why_recorded(recorded)}")
    for other in others:
        say(f"differs: {other}")
    missing = not_reproduced(recorded, trace)
    if missing and plan is None:
        say(f"not reproduced: {missing}" + ("" if others else "; nothing known differs from there"))
    if save is not None:
        save_trace(trace, save)
    result = diagnose(trace, policy)
    emit(result, sinks, all_layers)
    if trace.interrupted:
        raise Stop("interrupted: the report covers what was measured until then", FAILED)
    if result.verdict == "not-measured":
        raise Stop(f"error: nothing was measured: {result.sentence}", FAILED)

"""``ampdoctor gate``: fails a build where a model overflows, breaks a limit or is worse than its baseline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ampdoctor.cli.shared_options import (
    DataTarget,
    Debug,
    LossTarget,
    ModelTarget,
    OptimizerTarget,
    PlanFile,
    Quiet,
)
from ampdoctor.cli.sinks import FORMAT_HELP, OUTPUT_HELP
from ampdoctor.cli.workloads import Script, ScriptFile, ScriptModule, StepNumber, Targets
from ampdoctor.errors import ConfigError


def gate(
    context: typer.Context,
    configs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[CONFIG]...", help="Configs; ampdoctor.yaml where left out.", show_default=False
        ),
    ] = None,
    trace: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Judge a trace of `ampdoctor scan --save` instead of scanning."),
    ] = None,
    model: ModelTarget = None,
    data: DataTarget = None,
    loss: LossTarget = None,
    optimizer: OptimizerTarget = None,
    baseline: Annotated[
        Path | None, typer.Option(help="Compare with this file instead of the config's gate.baseline.")
    ] = None,
    update_baseline: Annotated[
        bool, typer.Option("--update-baseline", help="Accept what is found now, and write it down.")
    ] = False,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key of every config.")
    ] = None,
    format_: Annotated[str, typer.Option("--format", help=FORMAT_HELP)] = "text",
    output: Annotated[
        list[str] | None,
        typer.Option(
            "--output",
            "-o",
            metavar="[FORMAT=]FILE",
            help=f"{OUTPUT_HELP} {{config}} in its name makes a file per config.",
        ),
    ] = None,
    script: ScriptFile = None,
    module: ScriptModule = None,
    steps: Annotated[
        int | None, typer.Option("--steps", help="Of a script: stop after so many steps.", min=1)
    ] = None,
    step: StepNumber = None,
    plan: PlanFile = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Fail a build where a model overflows, breaks a limit, or is worse than its baseline.

    Exits 0 (clean), 1 (failed), 2 (a config or the command line is wrong) or 3 (not measured); with several
    configs the worst of theirs, in the order 0, 1, 3, 2.
    """
    from ampdoctor.cli.gate_run import run_gate
    from ampdoctor.cli.gate_subjects import GateOptions

    named = Script.named(script, module, context, step)
    if named is None and steps is not None:
        raise ConfigError("--steps is of a script", f"--script train.py --steps {steps}")
    options = GateOptions(tuple(set_ or ()), baseline, update_baseline, plan, quiet, debug)
    targets = Targets(model, data, loss, optimizer)
    run_gate(configs or [], trace or [], targets, options, format_, output or [], named, steps)

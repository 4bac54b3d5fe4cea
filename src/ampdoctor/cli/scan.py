"""``ampdoctor scan``: load, probe, diagnose, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ampdoctor.cli.clock import today
from ampdoctor.cli.exits import FAILED, Stop
from ampdoctor.cli.output import check_writable
from ampdoctor.cli.repository import path_from_here
from ampdoctor.cli.shared_options import (
    ConfigFile,
    DataTarget,
    Debug,
    LossTarget,
    ModelTarget,
    Ops,
    OptimizerTarget,
    Overrides,
    PlanFile,
    Quiet,
)
from ampdoctor.cli.sinks import FORMAT_HELP, OUTPUT_HELP, emit, sinks_of
from ampdoctor.cli.workloads import (
    Backward,
    Script,
    ScriptFile,
    ScriptModule,
    StepNumber,
    Targets,
    run_probe,
    source_of,
)
from ampdoctor.errors import ConfigError
from ampdoctor.facts.trace import Trace
from ampdoctor.store.traces import write_trace


def scan(
    context: typer.Context,
    config: ConfigFile = None,
    model: ModelTarget = None,
    data: DataTarget = None,
    loss: LossTarget = None,
    optimizer: OptimizerTarget = None,
    set_: Overrides = None,
    script: ScriptFile = None,
    module: ScriptModule = None,
    step: StepNumber = None,
    backward: Backward = None,
    format_: Annotated[str, typer.Option("--format", help=FORMAT_HELP)] = "text",
    output: Annotated[
        list[str] | None, typer.Option("--output", "-o", metavar="[FORMAT=]FILE", help=OUTPUT_HELP)
    ] = None,
    plan: PlanFile = None,
    after_steps: Annotated[
        int | None,
        typer.Option(help="Train so many steps first, as `scaler` does; scan what is then.", min=0),
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="Keep the trace, for `ampdoctor report` (.json or .json.gz).")
    ] = None,
    all_layers: Annotated[bool, typer.Option("--all-layers", help="Show every layer.")] = False,
    ops: Ops = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Find where the first bad value is born, and why.

    Runs the model in FP32 and in low precision, forward and backward, and compares.
    """
    sinks = sinks_of(format_, output)
    check_writable(save, "--save")
    named = Script.named(script, module, context, step, backward)
    source = source_of(config, Targets(model, data, loss, optimizer), set_ or [], named)
    from ampdoctor.api.request import policy_of
    from ampdoctor.diagnose.engine import diagnose

    trace, settings = run_probe(source, quiet, plan, after_steps or 0)
    policy = policy_of(settings, today())
    if save is not None:
        save_trace(trace, save)
    result = diagnose(trace, policy, path_from_here(settings.file))
    emit(result, sinks, all_layers, ops)
    if trace.interrupted:
        raise Stop("interrupted: the report covers what was measured until then", FAILED)
    if result.verdict == "not-measured":
        raise Stop(f"error: nothing was measured: {result.sentence}", FAILED)


def save_trace(trace: Trace, path: Path) -> None:
    """Nothing; the trace is in the file."""
    try:
        write_trace(trace, path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error

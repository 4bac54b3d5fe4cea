"""``ampdoctor scaler``: train a few steps on a copy with torch's GradScaler, and print what the scale did."""

from __future__ import annotations

import difflib
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ampdoctor.cli.exits import FAILED, Stop
from ampdoctor.cli.output import check_format, check_writable, drawing, write_document
from ampdoctor.cli.progress import progress_bar
from ampdoctor.cli.repository import path_from_here
from ampdoctor.cli.shared_options import (
    ConfigFile,
    DataTarget,
    Debug,
    LossTarget,
    ModelTarget,
    OptimizerTarget,
    Overrides,
    Quiet,
)
from ampdoctor.cli.user_output import user_output_to_stderr
from ampdoctor.cli.workloads import (
    Backward,
    Recording,
    Script,
    ScriptFile,
    ScriptModule,
    StepNumber,
    Targets,
    opened,
    source_of,
)
from ampdoctor.errors import ConfigError
from ampdoctor.facts.scale_names import scale_named
from ampdoctor.facts.scaler_policies import POLICIES, ScalerPolicy, static
from ampdoctor.facts.training import ScalerRun, ScalerSettings, torch_scaler

if TYPE_CHECKING:
    from ampdoctor.config import Config

_NEEDS_OPTIMIZER = ConfigError(
    "optimizer: is missing, and `ampdoctor scaler` takes real training steps",
    hint="add to the config: optimizer: {target: models.py:build_optimizer}, a function (model) -> "
    "torch.optim.Optimizer; or optimizer: {target: torch.optim:AdamW, kwargs: {lr: 1e-3}}; without a config: "
    "--optimizer torch.optim:AdamW",
)
_TORCH = POLICIES["torch"]


def scaler(
    context: typer.Context,
    config: ConfigFile = None,
    model: ModelTarget = None,
    data: DataTarget = None,
    loss: LossTarget = None,
    optimizer: OptimizerTarget = None,
    steps: Annotated[int, typer.Option(help="Training steps to take.", min=1)] = 200,
    init_scale: Annotated[
        str, typer.Option(help="GradScaler's first scale, 1024 or 2^10.")
    ] = f"{_TORCH.init_scale:.0f}",
    growth_interval: Annotated[
        int | None,
        typer.Option(
            help="Steps without overflow after which every policy raises its scale.",
            min=1,
            show_default="each policy's own; torch: 2000",
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Replay these rules on the measured thresholds: {', '.join(POLICIES)}, static:N or all.",
            show_default="all",
        ),
    ] = None,
    set_: Overrides = None,
    script: ScriptFile = None,
    module: ScriptModule = None,
    step: StepNumber = None,
    backward: Backward = None,
    format_: Annotated[str, typer.Option("--format", help="text or json.")] = "text",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the report to this file.")
    ] = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Show what a dynamic loss scale does with this model.

    Takes training steps on a working copy with the config's optimizer and torch's GradScaler: skipped steps,
    what tripped each, the scale it settles at, and what the rules of other frameworks would make of it.
    """
    from ampdoctor.render import SCALER

    check_format(format_, SCALER)
    check_writable(output, "--output")
    policies = _policies(policy or ["all"])
    first_scale = scale_named(init_scale)
    if not (math.isfinite(first_scale) and first_scale > 0):
        raise ConfigError(f"--init-scale {init_scale}: a loss scale is a number above 0, 1024 or 2^10")
    named = Script.named(script, module, context, step, backward)
    targets = Targets(model, data, loss, optimizer)
    source = source_of(config, targets, set_ or [], named)
    if not isinstance(source, (Script, Recording)):
        _check_trains(source)
    run = _train(source, torch_scaler(first_scale, growth_interval), steps, quiet)

    from ampdoctor.diagnose.scaler import judge_scaler

    command = ""
    if not isinstance(source, (Script, Recording)):
        command = _scan_command(source, targets, set_ or [], first_scale)
    report = judge_scaler(run, policies, growth_interval, command)
    write_document(SCALER[format_](report, drawing(output)), output)
    if run.interrupted:
        raise Stop("interrupted: the report covers the steps taken until then", FAILED)


def _scan_command(settings: Config, targets: Targets, overrides: Sequence[str], first_scale: float) -> str:
    """The command that scans the same, from the same first scale."""
    from ampdoctor.api.request import plan_of

    words = targets.words or [path_from_here(settings.file)]
    words += [word for override in overrides for word in ("--set", override)]
    plan = plan_of(settings)
    if plan.scaler == "dynamic" and plan.loss_scale != first_scale:
        words += ["--set", f"precision.loss_scale.dynamic={first_scale:g}"]
    return f"ampdoctor scan {shlex.join(words)}"


def _policies(names: Sequence[str]) -> tuple[ScalerPolicy, ...]:
    """The policies named, each once, in the order given; ``all`` is every framework's."""
    found: dict[str, ScalerPolicy] = {}
    for name in (part.strip() for entry in names for part in entry.split(",")):
        if name == "all":
            found.update(POLICIES)
        elif name in POLICIES:
            found[name] = POLICIES[name]
        elif name.startswith("static:"):
            own = static(_scale(name))
            found[own.name] = own
        else:
            near = difflib.get_close_matches(name, [*POLICIES, "static:N", "all"], n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ConfigError(
                f"--policy {name}: no such policy",
                hint=f"{hint}policies: {', '.join(POLICIES)}, static:N, all",
            )
    return tuple(found.values())


def _scale(name: str) -> float:
    text = name.partition(":")[2]
    value = scale_named(text)
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"--policy {name}: '{text}' is no loss scale", hint="for example static:1024")
    return value


def _check_trains(settings: Config) -> None:
    """Nothing; ConfigError for a config without a loss or an optimizer."""
    if settings.loss == "none":
        raise ConfigError(
            "loss: none leaves nothing to train with", hint="name a loss: {target: file.py:name}"
        )
    if settings.optimizer is None:
        raise _NEEDS_OPTIMIZER


def _train(source: Config | Script | Recording, setup: ScalerSettings, steps: int, quiet: bool) -> ScalerRun:
    """The run of what is examined. The user's prints go to stderr: stdout is the document."""
    with user_output_to_stderr(), progress_bar(quiet) as progress:
        progress("loading", 0, 1)
        from ampdoctor.api.request import plan_of
        from ampdoctor.probe.train import train

        with opened(source) as (workload, settings):
            if workload.build_optimizer is None and isinstance(source, Recording):
                raise ConfigError("the bundle's optimizer is none of torch.optim: it cannot be made here")
            if workload.build_optimizer is None:
                raise ConfigError(
                    "this step's optimizer works with a closure: there is no step of it to repeat",
                    hint="GradScaler does not step such optimizers either",
                )
            return train(workload, plan_of(settings), setup, steps, progress)

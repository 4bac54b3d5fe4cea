"""``ampdoctor scan``: load, probe, diagnose, print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ampdoctor.cli.clock import today
from ampdoctor.cli.exits import FAILED, Stop
from ampdoctor.cli.output import check_writable
from ampdoctor.cli.progress import progress_bar
from ampdoctor.cli.repository import path_from_here
from ampdoctor.cli.sinks import FORMAT_HELP, OUTPUT_HELP, emit, sinks_of
from ampdoctor.cli.user_output import user_output_to_stderr
from ampdoctor.errors import ConfigError
from ampdoctor.facts.store import write_trace
from ampdoctor.facts.trace import Trace

if TYPE_CHECKING:
    from ampdoctor.config import Config

DEFAULT_CONFIG = Path("ampdoctor.yaml")


def scan(
    config: Annotated[
        Path | None,
        typer.Argument(help="The config; ampdoctor.yaml where it is left out.", show_default=False),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Without a config: file.py:name of the model.")] = None,
    data: Annotated[str | None, typer.Option(help="file.py:name of a batch, or a file of tensors.")] = None,
    loss: Annotated[str | None, typer.Option(help="file.py:name, a built-in loss's name, or none.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the config.")
    ] = None,
    format_: Annotated[str, typer.Option("--format", help=FORMAT_HELP)] = "text",
    output: Annotated[
        list[str] | None, typer.Option("--output", "-o", metavar="[FORMAT=]FILE", help=OUTPUT_HELP)
    ] = None,
    plan: Annotated[Path | None, typer.Option(help="Measure under this plan.yaml of `prescribe`.")] = None,
    save: Annotated[
        Path | None, typer.Option(help="Keep the trace, for `ampdoctor report` (.json or .json.gz).")
    ] = None,
    all_layers: Annotated[bool, typer.Option("--all-layers", help="Show every layer.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the whole traceback of an error.")] = False,
) -> None:
    """Find where the first bad value is born, and why.

    Runs the model in FP32 and in low precision, forward and backward, and compares.
    """
    sinks = sinks_of(format_, output)
    check_writable(save, "--save")
    settings = read_settings(config, model, data, loss, set_ or [])
    from ampdoctor.api.request import policy_of
    from ampdoctor.diagnose.engine import diagnose

    policy = policy_of(settings, today())
    trace = run_probe(settings, quiet, plan)
    if save is not None:
        save_trace(trace, save)
    result = diagnose(trace, policy, path_from_here(settings.file))
    emit(result, sinks, all_layers)
    if trace.interrupted:
        raise Stop("interrupted: the report covers what was measured until then", FAILED)
    if result.verdict == "not-measured":
        raise Stop(f"error: nothing was measured: {result.sentence}", FAILED)


def read_settings(
    config: Path | None, model: str | None, data: str | None, loss: str | None, overrides: list[str]
) -> Config:
    """The config from a file, or from the options. Raises ConfigError where neither or both are given."""
    given = [f"--{name}" for name, value in (("model", model), ("data", data), ("loss", loss)) if value]
    if config is not None and given:
        raise ConfigError(
            f"{given[0]} and a config do not go together",
            hint=f"change the config's own key: --set {given[0][2:]}.target=file.py:name",
        )
    if config is None and not given and DEFAULT_CONFIG.is_file():
        config = DEFAULT_CONFIG
    if config is None and not given:
        raise ConfigError(
            "nothing to scan: name a config, or a model and its data",
            hint="ampdoctor scan --model model.py:build_model --data model.py:build_batch, "
            "or `ampdoctor init` to write a config",
        )

    from ampdoctor.config import config_from_options, load_config

    if config is not None:
        return load_config(config, overrides)
    return config_from_options(model=model, data=data, loss=loss, overrides=overrides)


def run_probe(settings: Config, quiet: bool, plan: Path | None = None) -> Trace:
    """The trace of what the config describes, under the plan in this file where one is named.

    The user's prints go to stderr: stdout is the document.
    """
    from ampdoctor.remedy.plan import TreatmentPlan, check_paths
    from ampdoctor.remedy.plan_file import read_plan

    treatment = TreatmentPlan() if plan is None else read_plan(plan)
    with user_output_to_stderr(), progress_bar(quiet) as progress:
        progress("loading", 0, 1)
        from ampdoctor.api.request import plan_of
        from ampdoctor.load import load
        from ampdoctor.probe.cuda.on_cpu import requested_autocast
        from ampdoctor.probe.scan import probe
        from ampdoctor.remedy.prescribe import treated

        with requested_autocast():
            workload = load(settings)
        check_paths(treatment, (path for path, _ in workload.model.named_modules()))
        return probe(workload, treated(plan_of(settings), treatment), progress)


def save_trace(trace: Trace, path: Path) -> None:
    """Nothing; the trace is in the file."""
    try:
        write_trace(trace, path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error

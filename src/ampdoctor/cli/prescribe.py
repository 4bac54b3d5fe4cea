"""``ampdoctor prescribe``: diagnose, search the smallest change that cures, prove it, print it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ampdoctor.cli.clock import today
from ampdoctor.cli.output import check_format, check_writable, drawing, write_document, write_file
from ampdoctor.cli.progress import progress_bar
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
    Script,
    ScriptFile,
    ScriptModule,
    StepNumber,
    Targets,
    opened,
    source_of,
)
from ampdoctor.errors import ConfigError


def prescribe(
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
    budget: Annotated[int, typer.Option(help="Passes that the search may take.", min=1)] = 200,
    formats: Annotated[
        str | None,
        typer.Option(help="Find the cheapest of these for each module as well: fp8,fp16,bf16,fp32."),
    ] = None,
    format_: Annotated[str, typer.Option("--format", help="text or json.")] = "text",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the prescription to this file.")
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Write the best treatment to this plan.yaml.")] = None,
    show: Annotated[
        str | None, typer.Option(metavar="code", help="Print the best treatment as lines to paste.")
    ] = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Find the smallest change that cures what a scan finds, and prove it.

    Tries a loss scale, then the fewest modules in FP32, then BF16. What is listed was run on every batch.
    """
    from ampdoctor.remedy.formats import FORMATS
    from ampdoctor.remedy.plan_file import plan_text
    from ampdoctor.render import PRESCRIPTION

    check_format(format_, PRESCRIPTION)
    check_writable(output, "--output")
    check_writable(save, "--save")
    if show not in (None, "code"):
        raise ConfigError(f"--show {show}: there is only code to show", hint="--show code")
    wanted = [] if formats is None else [word.strip().lower() for word in formats.split(",")]
    unknown = [word for word in wanted if word not in FORMATS]
    if unknown:
        raise ConfigError(
            f"--formats: {unknown[0]!r} is none of {', '.join(FORMATS)}", "--formats fp8,fp16,bf16,fp32"
        )
    named = Script.named(script, module, context, step, backward)
    source = source_of(config, Targets(model, data, loss, optimizer), set_ or [], named)
    with user_output_to_stderr(), progress_bar(quiet) as progress:
        progress("loading", 0, 1)
        from ampdoctor.api.request import plan_of, policy_of
        from ampdoctor.remedy.prescribe import prescribe as search

        with opened(source) as (workload, settings):
            found = search(
                workload, plan_of(settings), policy_of(settings, today()), budget, progress, wanted
            )
    best = found.treatments[0] if found.treatments else None
    if save is not None and best is not None:
        write_file(plan_text(best.plan).encode(), save)
    if best is None and (save is not None or show is not None):
        typer.echo("there is no treatment to write down", err=True)
    if show is not None and best is not None:
        from ampdoctor.remedy.code import code_of

        write_document(code_of(best.plan, found.environment.dtype), output)
        return
    write_document(PRESCRIPTION[format_](found, drawing(output)), output)

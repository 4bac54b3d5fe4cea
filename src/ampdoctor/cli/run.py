"""``ampdoctor run``: a training script, run as it is, its loop watched and its steps examined."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ampdoctor.cli.clock import today
from ampdoctor.cli.exits import USAGE, Stop
from ampdoctor.cli.failure import say, show
from ampdoctor.cli.output import check_writable, drawing, write_document
from ampdoctor.cli.scan import save_trace
from ampdoctor.cli.shared_options import Debug
from ampdoctor.cli.sinks import FORMAT_HELP, Sink, sinks_of

if TYPE_CHECKING:
    from ampdoctor.diagnose.run_report import RunReport
    from ampdoctor.load.script.program import Program

SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False}
"""What comes after the script's name, or after ``-m``, is the script's."""
_STATUS_OF_CTRL_C = 130
"""Not to be returned: newer typers return it for a Ctrl-C that came before there was anything to report."""


_KEPT = 20
"""Bundles that ``--record`` keeps."""


def run(
    context: typer.Context,
    script: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCRIPT|-m MODULE [ARGS]",
            help="The script, or a module as python -m runs it, and its own arguments.",
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Stop after so many steps.", min=1)] = None,
    until_nan: Annotated[
        bool, typer.Option("--until-nan", help="Stop at the first step that is not finite.")
    ] = False,
    step: Annotated[int | None, typer.Option(help="Examine this step, from 0.", min=0)] = None,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="With --until-nan: examine that step, and go on.")
    ] = False,
    record: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Keep the step in which something goes wrong, for `ampdoctor replay`."
        ),
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="Keep the trace of the step examined, for `ampdoctor report`.")
    ] = None,
    format_: Annotated[str, typer.Option("--format", help=FORMAT_HELP)] = "text",
    output: Annotated[
        list[str] | None,
        typer.Option("--output", "-o", metavar="[FORMAT=]FILE", help="Write to this file, not to stderr."),
    ] = None,
    all_layers: Annotated[bool, typer.Option("--all-layers", help="Show every layer.")] = False,
    debug: Debug = False,
) -> int:
    """Run a training script as python would, and examine its loop and its first step.

    The report comes after it, on stderr; the exit status is the script's.
    """
    sinks = sinks_of(format_, output)
    check_writable(save, "--save")
    from ampdoctor.load.script.program import check_program, program_of

    program = program_of(script or ())
    check_program(program)
    from ampdoctor.api.flight import shelf_of
    from ampdoctor.api.script_run import Wanted, run_script
    from ampdoctor.diagnose.policy import Policy

    shelf = None if record is None else shelf_of(record, _KEPT)
    wanted = Wanted(steps, step, until_nan, keep_going, shelf)
    # where files go is settled before the script changes the folder
    sinks = tuple(Sink(s.format, _of_rank(s.file)) for s in sinks)
    save = _of_rank(save)
    report, ended, traces = run_script(program, wanted, Policy(today=today()))
    sys.stdout.flush()
    if ended.said:
        show(ended.said)
    emit(report, sinks, all_layers)
    if ended.status == USAGE:
        _say_of_options(program, list(context.command.params))
    if save is not None and traces:
        save_trace(traces[-1], save)
    if ended.interrupted:
        raise Stop("interrupted: the report covers what was seen until then", ended.status)
    if ended.status == _STATUS_OF_CTRL_C:
        raise Stop(f"the script ended with exit status {ended.status}", ended.status)
    return ended.status


def _say_of_options(program: Program, options: Sequence[Any]) -> None:
    """Nothing; where a script refused an option of ours, how it is written is on stderr."""
    ours = {name: option for option in options for name in option.opts if name.startswith("-")}
    words = program.arguments
    at = next((i for i, word in enumerate(words) if word.partition("=")[0] in ours), None)
    if at is None:
        return
    alone = "=" in words[at] or getattr(ours[words[at]], "is_flag", False)
    option = shlex.join(words[at : at + 1 if alone else at + 2])
    named = f"-m {program.target}" if program.is_module else shlex.quote(program.target)
    say(
        f"hint: {option} went to the script; options of run stand before its name: "
        f"ampdoctor run {option} {named}"
    )


def emit(report: RunReport, sinks: Sequence[Sink], all_layers: bool) -> None:
    """Nothing; the report is on stderr and in every file that was asked for."""
    from ampdoctor.render import RUN

    for sink in sinks:
        document = RUN[sink.format](report, drawing(sink.file, all_layers, [report.script]))
        if sink.file is None:
            show(document.rstrip("\n"))
        else:
            write_document(document, sink.file)


def _of_rank(file: Path | None) -> Path | None:
    """The file as an absolute path; of several processes, each but the first has one of its own."""
    if file is None:
        return None
    rank = os.environ.get("RANK", "0")
    name = file.name if rank == "0" else f"{file.stem}.rank{rank}{file.suffix}"
    return file.absolute().with_name(name)

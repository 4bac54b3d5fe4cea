"""``main()``: runs a command, and turns whatever it raises into one clear message and an exit code."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ampdoctor.cli import explain, gate, grad_histogram, init, prescribe, replay, report, scaler, scan, schema
from ampdoctor.cli import run as run_command
from ampdoctor.cli.exits import FAILED, INTERRUPTED, OK, USAGE, Stop
from ampdoctor.cli.failure import bare_words, drop, exit_words, explain_error, fail, own_bug, say
from ampdoctor.cli.shared_options import Debug
from ampdoctor.errors import AmpDoctorError
from ampdoctor.version import VERSION

# rich_markup_mode=None: an error is one plain line, the last on stderr, not a drawn box
app = typer.Typer(
    name="ampdoctor",
    help="Finds where a mixed-precision PyTorch run breaks, why, and what to do about it.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("scan")(scan.scan)
app.command("run", context_settings=run_command.SETTINGS)(run_command.run)
app.command("replay")(replay.replay)
app.command("prescribe")(prescribe.prescribe)
app.command("scaler")(scaler.scaler)
app.command("grad-histogram")(grad_histogram.grad_histogram)
app.command("gate")(gate.gate)
app.command("report")(report.report)
app.command("explain")(explain.explain)
app.command("init")(init.init)
app.command("schema")(schema.schema)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ampdoctor {VERSION}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Options of every command; ``--debug`` is read by ``main`` itself."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Never returns: ends the process with the documented exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    # Python has None for a stream that was closed before it started (2>&-): what goes there is lost anyway.
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115
    try:
        Path.cwd()
    except FileNotFoundError:
        sys.exit(fail("error: the folder this was started in no longer exists", USAGE))
    sys.exit(run(arguments))


def run(arguments: Sequence[str]) -> int:
    """The exit code of one command line, its output and its errors written."""
    words, of_script = _split(arguments)
    debug = "--debug" in words
    try:
        ended = app(args=words or ["--help"], obj=of_script, prog_name="ampdoctor", standalone_mode=False)
    except Stop as stop:
        if stop.code == USAGE:
            _say_of_script(words)
        return fail(stop.reason, stop.code)
    except AmpDoctorError as error:
        if error.exit_code == USAGE:
            _say_of_script(words)
        return explain_error(error, debug)
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except SystemExit as exit_:
        return fail(f"error: {exit_words(exit_)}", FAILED)
    except OSError as error:
        if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EIO, errno.EPIPE):
            return own_bug(error, debug)
        drop(sys.stdout)  # help or a closing line, on a full disk or for a reader that has seen enough
        reason = f"error: cannot write to stdout: {error.strerror}"
        return OK if error.errno == errno.EPIPE else fail(reason, USAGE)
    except Exception as error:
        if isinstance(error, _USAGE_ERROR):
            _say_of_script(words)
            return fail(f"error: {error.format_message()}", USAGE)
        return own_bug(error, debug)
    except BaseException as error:  # asyncio.CancelledError and the like, of the scanned code
        return fail(f"error: the scanned code ended the process: {bare_words(error)}", FAILED)
    if ended == _CTRL_C:
        return _interrupted()
    return ended if isinstance(ended, int) else OK


def _split(arguments: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """The command line, and what a script that it names gets: all that comes after ``--``."""
    words = list(arguments)
    named = any(word.partition("=")[0] == "--script" or word.startswith("-m") for word in words)
    if not named or "--" not in words or words[0] == "run":
        return words, ()
    at = words.index("--")
    return words[:at], tuple(words[at + 1 :])


def _say_of_script(words: Sequence[str]) -> None:
    """Nothing; where a script stands in the place of something else, how it is named right is on stderr."""
    at = next((i for i, word in enumerate(words) if word.endswith(".py")), None)
    if at is None or words[0] == "run" or "--script" in words[max(at - 1, 0)] + words[at]:
        return
    if not Path(words[at]).is_file():
        return
    line = f"hint: a training script is examined with `ampdoctor run {words[at]} --its --own args`"
    if words[0] in TAKE_SCRIPTS:
        line += f", or with `ampdoctor {words[0]} --script {words[at]} -- --its --own args`"
    say(line)


TAKE_SCRIPTS = ("scan", "gate", "scaler", "prescribe", "grad-histogram")
"""Commands that take a script in a config's place."""

_CTRL_C = 130
"""What newer typers give back for a KeyboardInterrupt; older ones raise Abort."""

# ClickException, the class of every wrong command line; newer typers carry their own copy of click inside
_USAGE_ERROR: type[typer.BadParameter] = typer.BadParameter.__mro__[-4]


def _interrupted() -> int:
    return fail(INTERRUPTED, FAILED)

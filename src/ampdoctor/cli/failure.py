"""What a command says on stderr when it ends badly: everything that helps, and the reason last."""

from __future__ import annotations

import os
import sys
import traceback
from typing import TextIO

from ampdoctor.cli.exits import FAILED
from ampdoctor.errors import AmpDoctorError, ConfigError, is_out_of_memory, out_of_memory


def explain_error(error: AmpDoctorError, debug: bool) -> int:
    """The exit code; all that the error knows is on stderr."""
    explain_details(error, debug)
    return fail(f"error: {reason_of(error)}", error.exit_code)


def own_bug(error: Exception, debug: bool) -> int:
    """The exit code; an exception that is nobody's but ours, or the machine's, is on stderr."""
    explain_details(error, debug)
    return fail(f"error: {bug_words(error)}", FAILED)


def explain_details(error: Exception, debug: bool, about: str = "") -> None:
    """Nothing; all that helps is on stderr, but for the reason itself. ``about``: the config it concerns."""
    if about:
        say(f"{about}:")
    if debug:
        traceback.print_exception(error)
    if not isinstance(error, AmpDoctorError):
        if not debug:
            say("hint: --debug shows the whole traceback")
        return
    if error.user_traceback and not debug:
        say(error.user_traceback.rstrip())
    problems = error.problems if isinstance(error, ConfigError) else ()
    if len(problems) > 1:
        for problem in problems:
            say(f"  {_one_line(problem)}")
    if error.hint:
        say("\n".join(f"hint: {line}" for line in error.hint.splitlines()))


def reason_of(error: AmpDoctorError) -> str:
    """The error in one line: its only problem, or what sums several up."""
    problems = error.problems if isinstance(error, ConfigError) else ()
    return problems[0] if len(problems) == 1 else error.message


def bug_words(error: Exception) -> str:
    """``this is a bug in ampdoctor (KeyError: 'x')``, in one line; that memory ran out, where it did."""
    if is_out_of_memory(error):
        return out_of_memory("outside the measurement", error).message
    return f"this is a bug in ampdoctor ({bare_words(error)})"


def bare_words(error: BaseException) -> str:
    """``KeyError: 'x'``, in one line; the type alone where the exception cannot say what it is."""
    try:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    except Exception:  # an exception of the user's, whose own __str__ raises
        return type(error).__name__


def exit_words(error: SystemExit) -> str:
    """What code that was scanned did when it called ``sys.exit``."""
    return f"the scanned code ended the process: SystemExit({error.code!r})"


def fail(reason: str, code: int) -> int:
    """The code; the reason is on stderr, in one line whatever the scanned code's exception holds."""
    say(_one_line(reason))
    return code


def say(text: str) -> None:
    """Nothing; the text is on stderr, with whatever a terminal would act on written out but line ends."""
    show("\n".join(_one_line(line) for line in text.expandtabs().split("\n")))


def show(document: str) -> None:
    """Nothing; the document, drawn for this terminal, is on stderr.

    Where stderr takes nothing (a full disk, a reader that left), the command ends as it would have.
    """
    try:
        print(document, file=sys.stderr, flush=True)
    except OSError:
        drop(sys.stderr)


def drop(stream: TextIO) -> None:
    """Nothing; what is left in the stream's buffer goes nowhere when the interpreter flushes it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)

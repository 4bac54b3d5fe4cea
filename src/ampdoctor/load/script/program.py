"""Runs a script or a module as ``python`` would: its arguments, its folder on the path, ``__main__``."""

from __future__ import annotations

import builtins
import os
import runpy
import sys
import traceback
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ampdoctor.errors import ConfigError
from ampdoctor.load.traceback import user_traceback

__ampdoctor_calls_user_code__ = True
"""The script's lines end at frames of this module; see ``watch.location``."""


class Enough(BaseException):
    """Raised inside a script that has run for as long as it was to run. No ``except Exception`` stops it."""


@dataclass(frozen=True)
class Program:
    """What to run."""

    target: str
    """A file, or with ``is_module`` a module's dotted name."""
    arguments: tuple[str, ...] = ()
    is_module: bool = False


@dataclass(frozen=True)
class Ended:
    """How a program ended."""

    status: int
    """What ``python`` would have ended with."""
    said: str = ""
    """What ``python`` would have written to stderr: a traceback, or the text given to ``sys.exit``."""
    stopped: bool = False
    """It was stopped by us."""
    interrupted: bool = False


def run_program(program: Program) -> Ended:
    """How the program ended; whatever it raised is in words, without frames of ours."""
    hook = sys.excepthook
    with as_main(program):
        try:
            if program.is_module:
                runpy.run_module(program.target, run_name="__main__", alter_sys=True)
            else:
                _run_file(program.target)
        except Enough:
            return Ended(0, stopped=True)
        except KeyboardInterrupt:
            return Ended(130, interrupted=True)
        except SystemExit as exit_:
            return _exited(exit_)
        except BaseException as error:
            if sys.excepthook is not hook:  # the script's own way of showing exceptions
                sys.excepthook(type(error), error, error.__traceback__)
                return Ended(1)
            return Ended(1, _traceback(error))
    return Ended(0)


def check_program(program: Program) -> None:
    """Nothing; ConfigError for a script that is not there."""
    if program.is_module:
        return
    path = Path(program.target)
    if path.is_dir():
        raise ConfigError(f"{program.target} is a directory", "name the script in it, or run it with -m")
    if path.suffix in (".yaml", ".yml"):
        raise ConfigError(f"{program.target} is no script", f"a config is scanned: ampdoctor scan {path}")
    if program.target.startswith("-") and not path.exists():
        raise ConfigError(
            f"there is no option {program.target}",
            "`ampdoctor run --help` lists them; a script's own options stand behind its name",
        )
    if not path.is_file():
        raise ConfigError(f"there is no script {program.target}", f"in {Path.cwd()}")


def _run_file(target: str) -> None:
    code = compile(Path(target).read_bytes(), target, "exec")
    main = types.ModuleType("__main__")
    main.__file__ = target
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


@contextmanager
def as_main(program: Program) -> Iterator[None]:
    """Inside, arguments, import path and ``__main__`` are the program's; the folder is afterwards as before.

    Open around a program that was stopped, what it holds can still be called, and import.
    """
    argv, path, main = sys.argv, list(sys.path), sys.modules["__main__"]
    here = Path.cwd()
    folder = str(Path.cwd()) if program.is_module else str(Path(program.target).resolve().parent)
    sys.argv = [program.target, *program.arguments]
    sys.path[0:1] = [folder]
    try:
        yield
    finally:
        sys.argv = argv
        sys.path[:] = path
        sys.modules["__main__"] = main
        os.chdir(here)


def _exited(exit_: SystemExit) -> Ended:
    if exit_.code is None:
        return Ended(0)
    if isinstance(exit_.code, int):
        return Ended(exit_.code & 0xFF)
    return Ended(1, str(exit_.code))


def _traceback(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return "".join(traceback.format_exception_only(error)).rstrip("\n")
    return user_traceback(error)


def program_of(words: Sequence[str]) -> Program:
    """The program that these words of a command line name: ``train.py --lr 1``, ``-m train --lr 1``."""
    if not words:
        raise ConfigError(
            "no script to run", "ampdoctor run train.py --its --own args, or ampdoctor run -m package.train"
        )
    if words[0] == "-m":
        if len(words) < 2:
            raise ConfigError("-m names no module", "ampdoctor run -m package.train --its args")
        return Program(words[1], tuple(words[2:]), is_module=True)
    return Program(words[0], tuple(words[1:]))

"""``ampdoctor report``: a saved trace as a report again. Runs nothing and does not import torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ampdoctor.cli.clock import today
from ampdoctor.cli.exits import FAILED, Stop
from ampdoctor.cli.shared_options import Debug, Ops
from ampdoctor.cli.sinks import FORMAT_HELP, OUTPUT_HELP, emit, sinks_of
from ampdoctor.errors import ConfigError
from ampdoctor.facts.trace import Trace
from ampdoctor.store.codec import FileError
from ampdoctor.store.traces import read_trace


def report(
    trace: Annotated[Path, typer.Argument(help="A trace that `ampdoctor scan --save` wrote.")],
    config: Annotated[Path | None, typer.Option(help="Take limits and rules from this config.")] = None,
    format_: Annotated[str, typer.Option("--format", help=FORMAT_HELP)] = "text",
    output: Annotated[
        list[str] | None, typer.Option("--output", "-o", metavar="[FORMAT=]FILE", help=OUTPUT_HELP)
    ] = None,
    all_layers: Annotated[bool, typer.Option("--all-layers", help="Show every layer.")] = False,
    ops: Ops = False,
    debug: Debug = False,
) -> None:
    """Print the report of a saved trace, without running anything."""
    sinks = sinks_of(format_, output)
    from ampdoctor.diagnose.engine import DEFAULT_POLICY, diagnose

    policy = DEFAULT_POLICY
    if config is not None:
        from ampdoctor.api.request import policy_of
        from ampdoctor.config import load_config

        policy = policy_of(load_config(config), today())
    result = diagnose(read_saved(trace), policy, str(config or ""))
    emit(result, sinks, all_layers, ops)
    if result.verdict == "not-measured":
        raise Stop(f"error: nothing was measured: {result.sentence}", FAILED)


def read_saved(path: Path) -> Trace:
    """The trace in a file. Raises ConfigError where there is none."""
    try:
        return read_trace(path)
    except FileError as error:
        raise ConfigError(f"{path} {error}", hint="`ampdoctor scan --save trace.json` writes one") from error
    except IsADirectoryError as error:
        raise ConfigError(f"{path} is a directory, not a trace") from error
    except FileNotFoundError as error:
        raise ConfigError(f"there is no file {path}") from error
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error

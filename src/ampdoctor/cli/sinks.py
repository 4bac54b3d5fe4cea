"""Where the documents of a command go: ``--format`` for stdout, ``--output`` for files, as many as needed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ampdoctor.cli.job_summary import append_job_summary
from ampdoctor.cli.output import check_format, check_writable, drawing, write_document
from ampdoctor.errors import ConfigError

if TYPE_CHECKING:
    from ampdoctor.diagnose.report import Report

FORMAT_HELP = "Of the document on stdout: text, json, ... (a wrong name lists all)."
OUTPUT_HELP = "Write to this file instead of stdout; as FORMAT=FILE besides, as often as needed."


@dataclass(frozen=True)
class Sink:
    """One document: its format, and its file."""

    format: str
    file: Path | None
    """None: stdout."""


def sinks_of(format_name: str, outputs: Sequence[str] | None) -> tuple[Sink, ...]:
    """What ``--format`` and every ``--output FILE`` or ``--output FORMAT=FILE`` ask for.

    A bare FILE takes the place of stdout; FORMAT=FILE comes on top of it. Raises ConfigError for an unknown
    format, and for a file that could not be written.
    """
    check_format(format_name)
    sinks = [_sink(output, format_name) for output in outputs or ()]
    bare = [sink for sink, explicit in sinks if not explicit]
    files = [sink.file for sink, _ in sinks]
    for file in files:
        if files.count(file) > 1:
            raise ConfigError(f"--output {file}: this file is named twice")
    stdout = [] if bare else [Sink(format_name, None)]
    return (*stdout, *(sink for sink, _ in sinks))


def emit(report: Report, sinks: Sequence[Sink], all_layers: bool, ops: bool = False) -> None:
    """Nothing; the report is on stdout and in every file that was asked for."""
    from ampdoctor.render import FORMATS

    for sink in sinks:
        write_document(
            FORMATS[sink.format](report, replace(drawing(sink.file, all_layers, [report.config]), ops=ops)),
            sink.file,
        )
    if any(sink.format == "github" for sink in sinks):
        append_job_summary([report], all_layers)


def _sink(output: str, format_name: str) -> tuple[Sink, bool]:
    """The sink, and whether the option named its format."""
    named = re.match(r"(\w+)=(.+)", output)
    if named is None:
        check_writable(Path(output), "--output")
        return Sink(format_name, Path(output)), False
    name, file = named[1], Path(named[2])
    from ampdoctor.render import FORMATS

    if name not in FORMATS:
        hint = f"formats: {', '.join(FORMATS)}; for a file with = in its name write ./{output}"
        raise ConfigError(f"--output {output}: there is no format {name}", hint)
    check_format(name)
    check_writable(file, "--output")
    return Sink(name, file), True

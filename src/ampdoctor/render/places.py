"""Where a finding lies in the repository: what CI pages and code scanners need to show it at its line."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import PurePath

from ampdoctor.diagnose.report import Report
from ampdoctor.diagnose.wording import source_place
from ampdoctor.facts.site import Source
from ampdoctor.render.options import Options


@dataclass(frozen=True)
class Place:
    """A line of a file in the repository."""

    file: str
    """From the repository's root, with forward slashes."""
    line: int


def repository_file(file: str, options: Options) -> str | None:
    """The file from the repository's root, with forward slashes; None for one that does not lie in it."""
    if not file or file.startswith("<"):  # <string>, <eval_with_key>: code that is in no file
        return None
    path = PurePath(os.path.normpath(os.path.join(options.base, file)))  # noqa: PTH118  strings only: reads no disk
    root = options.root or options.base
    if root and path.is_relative_to(root):
        path = path.relative_to(root)
    return None if path.is_absolute() or path.parts[:1] in ((), ("..",)) else path.as_posix()


def place_of(source: Source | None, report: Report, options: Options) -> Place | None:
    """The line where it lies in the repository, else the first line of the config that was scanned."""
    if source is not None:
        file = repository_file(source.file, options)
        if file is not None:
            return Place(file, source.line)
    config = repository_file(report.config, options)
    return Place(config, 1) if config is not None else None


def source_words(source: Source | None, options: Options) -> str:
    """``src/models/t5.py:33``; outside the repository ``t5.py:33``; '' where the line is not known."""
    if source is None:
        return ""
    file = repository_file(source.file, options)
    return f"{file}:{source.line}" if file is not None else source_place(source)


def subject(report: Report, options: Options) -> str:
    """What was scanned: the config, from the repository's root where it lies there, else the target."""
    return repository_file(report.config, options) or report.config or report.environment.title

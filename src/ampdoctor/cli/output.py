"""Where a document goes: stdout as the terminal can show it, or a file."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Callable, Container, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ampdoctor.cli.failure import drop
from ampdoctor.cli.repository import repository_root
from ampdoctor.errors import ConfigError
from ampdoctor.facts.excerpt import Excerpt, read_excerpt
from ampdoctor.facts.site import Source
from ampdoctor.files import write_atomically

if TYPE_CHECKING:
    from ampdoctor.render import Options

_WIDEST = 80
_NARROWEST = 72
"""Below this the table's columns no longer fit; the terminal may wrap instead."""


def check_format(name: str, formats: Container[str] | None = None) -> str:
    """The name of a format that can be written here. Raises ConfigError for another.

    ``formats``: those of this command; None: those of a report.
    """
    from ampdoctor.render import FORMATS, TABLE

    known = [n for n in TABLE if n in (FORMATS if formats is None else formats)]
    if name not in known:
        raise ConfigError(f"--format {name}: no such format", hint=f"formats: {', '.join(known)}")
    package = TABLE[name].package
    if package and find_spec(package) is None:
        hint = f'pip install "ampdoctor[{name}]" brings it'
        raise ConfigError(f"the format {name} needs the package {package}", hint)
    return name


def check_writable(path: Path | None, option: str) -> None:
    """Nothing; ConfigError before the long work for a path that could not be written after it."""
    if path is None:
        return
    folder = path.absolute().parent
    try:
        if path.is_dir():
            raise ConfigError(f"{option} {path}: is a directory", hint="name a file in it")
        if not folder.is_dir():
            raise ConfigError(f"{option} {path}: there is no directory {folder}")
        path.exists()
    except (OSError, ValueError) as error:  # a name that is too long, or holds a NUL
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{option} {path}: no file can have this name: {reason}") from error
    target = path if path.exists() else folder
    if not os.access(target, os.W_OK):
        raise ConfigError(f"{option} {path}: no permission to write there")


def drawing(output: Path | None, all_layers: bool = False, programs: Sequence[str] = ()) -> Options:
    """How to draw for what reads it: this terminal, a pipe, or the file.

    ``programs``: the configs or the script examined, whose repositories' lines may be shown.
    """
    from ampdoctor.render import Options

    to_terminal = output is None and sys.stdout.isatty()
    width = min(max(shutil.get_terminal_size().columns, _NARROWEST), _WIDEST) if to_terminal else _WIDEST
    return Options(
        width=width,
        color=to_terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb",
        unicode=output is not None or _shows_unicode(sys.stdout.encoding),
        all_layers=all_layers,
        base=str(Path.cwd()),
        root=str(repository_root(Path.cwd())),
        excerpt=_excerpts_near(programs),
    )


def _excerpts_near(programs: Sequence[str]) -> Callable[[Source], Excerpt | None]:
    """Reads lines of the repositories of ``programs``, of the current folder, and of installed packages.

    A trace that somebody else wrote may name any file of this machine: what lies elsewhere stays out of a
    report, which travels.
    """
    folders = [Path.cwd(), *(Path(program).absolute().parent for program in programs if program)]
    installed = [Path(sysconfig.get_path(name)) for name in ("purelib", "platlib", "stdlib")]
    roots = [root.resolve() for root in (*map(repository_root, folders), *installed)]

    def read(source: Source) -> Excerpt | None:
        file = Path(source.file).resolve()
        return read_excerpt(source) if any(file.is_relative_to(root) for root in roots) else None

    return read


def write_document(document: str, output: Path | None) -> None:
    """Nothing; the document is on stdout, or in the file."""
    if output is None:
        print_document(document)
    else:
        write_file(document.encode(errors="backslashreplace"), output)


def write_file(data: bytes, output: Path) -> None:
    """Nothing; the file holds the data. Raises ConfigError where it cannot be written."""
    try:
        write_atomically(output, data)
    except OSError as error:
        raise ConfigError(f"cannot write {output}: {error.strerror or error}") from error


def print_document(document: str) -> None:
    """Nothing; the document is on stdout, or its reader (head) has seen enough and left."""
    try:
        sys.stdout.write(_encodable(document))
        sys.stdout.flush()
    except BrokenPipeError:
        drop(sys.stdout)
    except OSError as error:
        drop(sys.stdout)
        raise ConfigError(f"cannot write to stdout: {error.strerror or error}") from error


def _encodable(document: str) -> str:
    """The document with what stdout's encoding cannot write spelled out."""
    encoding = sys.stdout.encoding or "utf-8"
    return document.encode(encoding, "backslashreplace").decode(encoding)


def _shows_unicode(encoding: str | None) -> bool:
    return (encoding or "").lower().replace("-", "").startswith("utf")

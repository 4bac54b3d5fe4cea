"""Baseline files: found, read and written for the gate."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ampdoctor.cli.output import check_writable, write_file
from ampdoctor.errors import ConfigError
from ampdoctor.files import read_bounded
from ampdoctor.gate.baseline import Known
from ampdoctor.store.baselines import dump, parse
from ampdoctor.store.codec import FileError

DEFAULT_BASELINE = Path("ampdoctor-baseline.json")
"""Of a trace without a config, in the current folder."""


def read_baseline(path: Path) -> Mapping[str, Known] | None:
    """{config: its section}; None where there is no such file. Raises ConfigError for any other file."""
    try:
        return parse(read_bounded(path))
    except FileNotFoundError:
        return None
    except FileError as error:
        hint = "restore it from version control, or delete it and write it anew with --update-baseline"
        raise ConfigError(f"the baseline {path} {error}", hint) from error
    except OSError as error:
        raise ConfigError(f"the baseline {path} cannot be read: {error.strerror or error}") from error


def check_baseline_writable(path: Path) -> None:
    """Nothing; ConfigError before the long work where the baseline could not be written after it."""
    check_writable(path, "--update-baseline")


def write_baselines(files: Mapping[Path, Mapping[str, Known]]) -> None:
    """Nothing; each file holds the sections, and those of other configs that it held before."""
    for path, sections in files.items():
        write_file(dump({**(read_baseline(path) or {}), **sections}).encode(), path)


def section_of(config: Path | None, title: str, baseline: Path) -> str:
    """The config's name in this file: its path from the file's folder, with forward slashes, or the title."""
    if config is None:
        return title
    absolute = config.absolute()
    try:
        return Path(os.path.relpath(absolute, baseline.absolute().parent)).as_posix()
    except ValueError:  # another drive
        return absolute.as_posix()

"""The user's part of a traceback."""

from __future__ import annotations

import traceback
from pathlib import Path

import ampdoctor

OWN_FOLDERS = tuple(str(Path(folder).resolve()) for folder in ampdoctor.__path__)


def user_traceback(error: BaseException) -> str:
    """The traceback of ``error`` and of what caused it, without ampdoctor's and importlib's frames."""
    report = traceback.TracebackException.from_exception(error)
    _trim(report)
    return "".join(report.format()).rstrip("\n")


def _trim(report: traceback.TracebackException) -> None:
    # Python keeps every exception once in a chain, so this ends.
    kept = [frame for frame in report.stack if not _is_machinery(frame.filename)]
    report.stack = traceback.StackSummary.from_list(kept)
    for other in (report.__cause__, report.__context__):
        if other is not None:
            _trim(other)
    for inner in getattr(report, "exceptions", None) or ():
        _trim(inner)


def _is_machinery(filename: str) -> bool:
    if filename.startswith("<frozen importlib") or filename.endswith("importlib/__init__.py"):
        return True
    return any(Path(filename).is_relative_to(folder) for folder in OWN_FOLDERS)

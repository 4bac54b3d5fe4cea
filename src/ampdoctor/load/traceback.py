"""The user's part of a traceback."""

from __future__ import annotations

import traceback
from pathlib import Path

OWN_FOLDER = Path(__file__).resolve().parent.parent


def user_traceback(error: BaseException) -> str:
    """The traceback of ``error`` and of what caused it, without ampdoctor's and importlib's frames."""
    report = traceback.TracebackException.from_exception(error)
    _trim(report)
    return "".join(report.format()).rstrip("\n")


def message_of(error: BaseException) -> str:
    """What the exception says; Python's words for it where the user's own ``__str__`` raises."""
    try:
        return str(error)
    except Exception:
        return "<exception str() failed>"


PASSED_AS = "ampdoctor_passed_as"
"""An attribute of an exception that ended a call of the model which ampdoctor made."""


def passed_as(error: BaseException) -> str:
    """How the batch was handed to the model whose call ended with ``error``; '' for a call of the user's."""
    return str(getattr(error, PASSED_AS, ""))


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
    return Path(filename).resolve().is_relative_to(OWN_FOLDER)

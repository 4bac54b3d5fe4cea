"""Exit codes, and the exception that ends a command whose output is already written."""

from __future__ import annotations

OK = 0
GATE_FAILED = 1
USAGE = 2
"""The user's config or command line is wrong."""
FAILED = 3
"""The measurement could not be made, or nothing was measured."""
INTERRUPTED = "interrupted: nothing was measured"
"""What is said of Ctrl-C before there is anything to report."""


class Stop(Exception):
    """Ends a command that has said all it can: ``reason`` is the last line on stderr."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code

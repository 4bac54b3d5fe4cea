"""Whatever the scanned code prints goes to stderr: stdout is the document."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def user_output_to_stderr() -> Iterator[None]:
    """Inside, stdout is stderr; also for child processes and C code, which write to the descriptor."""
    with contextlib.redirect_stdout(sys.stderr), contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # one of them is closed: nothing to keep apart
            kept = os.dup(1)
            stack.callback(os.close, kept)
            stack.callback(os.dup2, kept, 1)
            os.dup2(2, 1)
        yield

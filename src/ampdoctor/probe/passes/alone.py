"""One measurement at a time: what a pass switches and watches belongs to the whole process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ampdoctor.errors import ProbeError


class Alone:
    """A lock that refuses instead of waiting: who waits inside a pass of the holder never ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread = 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Raises ProbeError where someone is inside already, on this thread or on another."""
        if not self._lock.acquire(blocking=False):
            raise self._refusal()
        self._thread = threading.get_ident()
        try:
            yield
        finally:
            self._lock.release()

    def _refusal(self) -> ProbeError:
        if self._thread == threading.get_ident():
            return ProbeError(
                "a scan is running already, and this one was started inside it",
                "leave the scan out of the model, the loss and their hooks",
            )
        return ProbeError(
            "another thread of this process is running a scan",
            "run one after the other, or each in a process of its own",
        )


alone = Alone()
"""Around everything that is measured."""
alone_with_objects = Alone()
"""Around a scan of live objects, which uncompiles and seeds before anything is measured."""

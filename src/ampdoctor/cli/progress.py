"""Long work: what is running, and how far it is; a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

Show = Callable[[str, int, int], None]
"""Takes what is done now, how many of it are done, and of how many."""

_SECONDS = 5.0
"""Between two lines in a log: a short scan writes none, a long one does not look stuck."""


@contextlib.contextmanager
def progress_bar(quiet: bool) -> Iterator[Show]:
    """A bar on stderr where that is a terminal, else a line every few seconds; ``quiet``: nothing."""
    if quiet:
        yield lambda what, done, total: None
        return
    if not sys.stderr.isatty():
        with _lines(_SECONDS) as show:
            yield show
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as bar:
        task = bar.add_task("starting", total=1)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


@contextlib.contextmanager
def _lines(seconds: float) -> Iterator[Show]:
    """Says what is running, every so many seconds, also while one pass takes long: a thread waits beside."""
    from ampdoctor.cli.failure import say

    at = ["starting", 0, 1]
    ended = threading.Event()
    began = time.monotonic()

    def show(what: str, done: int, total: int) -> None:
        at[:] = what, done, total

    def tell() -> None:
        while not ended.wait(seconds):
            what, done, total = at
            say(f"ampdoctor: {what}, {done} of {total}, {time.monotonic() - began:.0f} s")

    teller = threading.Thread(target=tell, name="ampdoctor progress", daemon=True)
    teller.start()
    try:
        yield show
    finally:
        ended.set()
        teller.join()

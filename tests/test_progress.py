"""What is seen of long work where stderr is no terminal: a line every few seconds."""

from __future__ import annotations

import re
import threading

import pytest

from ampdoctor.cli import progress


class Log:
    """Stands for stderr; sets ``wrote`` once a line holds ``word``."""

    def __init__(self, word: str) -> None:
        self.text, self.word, self.wrote = "", word, threading.Event()

    def write(self, text: str) -> None:
        self.text += text
        if self.word in self.text:
            self.wrote.set()

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return False


def test_a_log_says_what_runs_and_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log("candidate")
    monkeypatch.setattr("sys.stderr", log)
    monkeypatch.setattr(progress, "_SECONDS", 0.001)
    with progress.progress_bar(quiet=False) as show:
        show("candidate pass", 2, 8)
        assert log.wrote.wait(60)
    assert re.search(r"^ampdoctor: candidate pass, 2 of 8, \d+ s$", log.text, re.MULTILINE)
    assert "ampdoctor progress" not in [thread.name for thread in threading.enumerate()]


def test_short_and_quiet_work_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log("ampdoctor")
    monkeypatch.setattr("sys.stderr", log)
    with progress.progress_bar(quiet=False) as show:
        show("loading", 0, 1)
    monkeypatch.setattr(progress, "_SECONDS", 0.0)
    with progress.progress_bar(quiet=True) as show:
        show("loading", 0, 1)
    assert log.text == ""

"""What a measurement is at: told to whoever waits, and in the error if it ends there."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called as (what starts now, steps done, steps in all)."""


class Stages:
    """A progress that remembers what started last, and hands everything on."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._last = ""

    def __call__(self, stage: str, done: int, total: int) -> None:
        self._last = stage
        if self._progress is not None:
            self._progress(stage, done, total)

    def doing(self, what: str) -> str:
        """``while measuring (second look, batch 0)``"""
        return f"{what} ({self._last})" if self._last else what

"""What can be asked of a process in which CUDA is host memory, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SCENARIOS: dict[str, Callable[[], Any]] = {}


def scenario(made: Callable[[], Any]) -> Callable[[], Any]:
    SCENARIOS[made.__name__] = made
    return made

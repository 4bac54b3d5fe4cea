"""What ``ampdoctor`` offers to Python code: ``scan`` and the ``Report`` that it returns."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def drawing_nothing() -> Iterator[None]:
    """Python's generator is afterwards as it was: rich draws from it when it is imported."""
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)

"""The random generators of python, numpy and torch: set together, and put back."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


def seed_everything(seed: int) -> None:
    """Seeds python, numpy (where something imported it) and torch on every device."""
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


@contextmanager
def preserved_rng() -> Iterator[None]:
    """The generators are afterwards as they were before."""
    python_state = random.getstate()
    numpy = sys.modules.get("numpy")
    numpy_state = None if numpy is None else numpy.random.get_state()
    # Asking for the state of CUDA's generators would start CUDA.
    has_started: Callable[[], bool] = torch.cuda.is_initialized
    devices = list(range(torch.cuda.device_count())) if has_started() else []
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(python_state)
            if numpy is not None:
                numpy.random.set_state(numpy_state)

"""The random generators of python, numpy and torch: set together, put back, and drawn from once more."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

Drawn = Sequence[tuple[torch.Generator, Tensor]]
"""Generators, each with its state before something drew from it."""


def seed_everything(seed: int) -> None:
    """Seeds python, numpy (where something imported it) and torch on every device."""
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


@contextmanager
def preserved_rng() -> Iterator[None]:
    """The generators are afterwards as they were before.

    Those of a CUDA that had not started, and starts inside or later, begin with the seed that torch had:
    ``torch.manual_seed`` leaves its seed for them too.
    """
    python_state = random.getstate()
    numpy = sys.modules.get("numpy")
    numpy_state = None if numpy is None else numpy.random.get_state()
    # Asking for the state of CUDA's generators would start CUDA.
    started = bool(torch.cuda.is_initialized())
    seed = torch.initial_seed()
    with torch.random.fork_rng(range(torch.cuda.device_count()) if started else ()):
        try:
            yield
        finally:
            random.setstate(python_state)
            if numpy is not None:
                numpy.random.set_state(numpy_state)
            if not started:
                torch.cuda.manual_seed_all(seed)


def generator_of(device: torch.device) -> torch.Generator | None:
    """The generator that draws on a device when none is named; None where it cannot be asked for."""
    if device.type == "cpu":
        return torch.default_generator
    if device.type != "cuda":
        return None
    index = device.index if device.index is not None else torch.cuda.current_device()
    generators = torch.cuda.default_generators
    return generators[index] if index < len(generators) else None  # not there before CUDA has started


def generators_of(device: torch.device) -> list[torch.Generator]:
    """The generators that a call may draw from that works on this device: the host's and the device's."""
    found = (
        [torch.default_generator, generator_of(device)] if device.type != "cpu" else [torch.default_generator]
    )
    return [generator for generator in found if generator is not None]


def generators_in_use() -> list[torch.Generator]:
    """The generators that any call may draw from now: the host's, and a started GPU's."""
    return generators_of(torch.device("cuda" if torch.cuda.is_initialized() else "cpu"))


def states(generators: Iterable[torch.Generator]) -> Drawn:
    """The generators with the states they have now."""
    return [(generator, generator.get_state()) for generator in generators]


@contextmanager
def drawing_again(drawn: Drawn) -> Iterator[None]:
    """Inside, draws come out as they did; afterwards the generators are as they were before."""
    now = states(generator for generator, _ in drawn)
    try:
        set_states(drawn)
        yield
    finally:
        set_states(now)


def set_states(drawn: Drawn) -> None:
    """Nothing; the generators are in these states."""
    for generator, state in drawn:
        generator.set_state(state)

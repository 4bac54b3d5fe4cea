"""Puts Python kernels into PyTorch's dispatcher for a while."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._ops import OpOverload


@contextmanager
def kernels_installed(kernels: Iterable[tuple[str, str, Callable[..., Any]]]) -> Iterator[None]:
    """While open, each (op overload's name without ``aten::``, dispatch key, kernel) runs in the place of
    PyTorch's own kernel; afterwards PyTorch's own run again."""
    open_library: Any = torch.library.Library  # untyped in torch
    library = open_library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="(?s).*verriding a previously registered kernel")
            for name, key, kernel in kernels:
                library.impl(name, kernel, key)
        yield
    finally:
        library._destroy()


def aten_overload(name: str) -> OpOverload | None:
    """The op overload of that name, ``sum.dim_IntList``; None where this version of torch has none."""
    packet, _, overload = name.partition(".")
    found = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
    return found if isinstance(found, OpOverload) else None

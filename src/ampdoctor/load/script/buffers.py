"""Buffers as they were before a root module ran: a step that is run again starts from those."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class Saved:
    """One buffer's value at that time."""

    owner: nn.Module
    name: str
    value: Tensor


class BufferWatch:
    """Copies the buffers that move: all of a root at its first call, later those of modules that changed one.

    A norm's running mean changes inside its kernel, unseen by version counters; the counter beside it does
    not, so that modules are watched and not single buffers.
    """

    def __init__(self) -> None:
        self._still: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._before: list[tuple[nn.Module, str, Tensor, int]] = []

    def before(self, root: nn.Module) -> list[Saved]:
        """Copies of what may move in the call that begins now."""
        self._before = [
            (owner, name, buffer, 0 if buffer.is_inference() else buffer._version)
            for owner in root.modules()
            for name, buffer in owner._buffers.items()
            if buffer is not None
        ]
        return [
            Saved(owner, name, buffer.detach().clone())
            for owner, name, buffer, _ in self._before
            if owner not in self._still
        ]

    def after(self) -> None:
        """Nothing; modules whose buffers the call left alone are not copied again, until they move one."""
        moved = {
            owner
            for owner, name, buffer, version in self._before
            if owner._buffers.get(name) is not buffer or buffer.is_inference() or buffer._version != version
        }
        for owner in {owner for owner, *_ in self._before}:
            (self._still.discard if owner in moved else self._still.add)(owner)
        self._before = []


@contextmanager
def put_back(saved: Iterable[Saved]) -> Iterator[None]:
    """Inside, these buffers hold what they held; of one that was saved twice, the first counts."""
    first: dict[tuple[nn.Module, str], Tensor] = {}
    for one in saved:
        first.setdefault((one.owner, one.name), one.value)
    undo: list[tuple[nn.Module, str, Tensor, Tensor]] = []
    try:
        for (owner, name), value in first.items():
            now = owner._buffers.get(name)
            if now is not None and now.shape == value.shape and now.dtype == value.dtype:
                undo.append((owner, name, now, now.data))
                now.data = value.to(now.device)
        yield
    finally:
        for owner, name, now, data in undo:
            now.data = data
            owner._buffers[name] = now

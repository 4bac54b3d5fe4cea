"""A note on each piece of tensor memory, for as long as that memory lives."""

from __future__ import annotations

from typing import Generic, TypeVar

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

T = TypeVar("T")
_FEW = 64
"""Notes among which none is looked for to drop."""


class StorageMap(Generic[T]):
    """Notes by storage, so that all views of a tensor share one. A freed storage's address is soon used
    again; its note is not found then. Notes that no one can find are dropped as their number doubles: each
    keeps a small piece of memory, and those between large ones keep theirs from being used again."""

    def __init__(self) -> None:
        self._notes: dict[int, tuple[StorageWeakRef, T]] = {}
        self._look_over_at = _FEW

    def get(self, tensor: Tensor) -> T | None:
        """The note on the tensor's storage; None if there is none."""
        found = self._notes.get(tensor.untyped_storage()._cdata)
        return None if found is None or found[0].expired() else found[1]

    def put(self, tensor: Tensor, note: T) -> None:
        """Notes it, in place of an earlier note."""
        storage = tensor.untyped_storage()
        self._notes[storage._cdata] = (StorageWeakRef(storage), note)
        if len(self._notes) >= self._look_over_at:
            self._notes = {key: kept for key, kept in self._notes.items() if not kept[0].expired()}
            self._look_over_at = max(_FEW, 2 * len(self._notes))

    def drop(self, tensor: Tensor) -> None:
        """Forgets the note, if there is one."""
        self._notes.pop(tensor.untyped_storage()._cdata, None)

    def clear(self) -> None:
        """Forgets every note."""
        self._notes.clear()

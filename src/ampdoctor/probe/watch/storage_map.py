"""A note on each piece of tensor memory, for as long as that memory lives."""

from __future__ import annotations

from typing import Generic, TypeVar

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

T = TypeVar("T")


class StorageMap(Generic[T]):
    """Notes by storage, so that all views of a tensor share one. A freed storage's address is soon used
    again; its note is not found then."""

    def __init__(self) -> None:
        self._notes: dict[int, tuple[StorageWeakRef, T]] = {}

    def get(self, tensor: Tensor) -> T | None:
        """The note on the tensor's storage; None if there is none."""
        found = self._notes.get(tensor.untyped_storage()._cdata)
        return None if found is None or found[0].expired() else found[1]

    def put(self, tensor: Tensor, note: T) -> None:
        """Notes it, in place of an earlier note."""
        storage = tensor.untyped_storage()
        self._notes[storage._cdata] = (StorageWeakRef(storage), note)

    def drop(self, tensor: Tensor) -> None:
        """Forgets the note, if there is one."""
        self._notes.pop(tensor.untyped_storage()._cdata, None)

    def clear(self) -> None:
        """Forgets every note."""
        self._notes.clear()

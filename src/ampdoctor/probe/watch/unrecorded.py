"""Observers that record nothing: what a model does while nobody looks."""

from __future__ import annotations

from typing import Any

from ampdoctor.probe.watch.observer import Observer
from ampdoctor.probe.watch.op_arguments import AnyOp


class Unrecorded(Observer):
    """Runs every op as the candidate does, and records nothing."""

    def see(self, func: AnyOp, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the op returns."""
        return self.call(func, args, kwargs)[0]


class Absent(Observer):
    """Is not even there: PyTorch runs the ops as it would without a dispatch mode."""

    def __enter__(self) -> Absent:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

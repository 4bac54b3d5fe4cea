"""What every watcher of calls shares: who records, who listens, and whether to look at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ampdoctor.live.mode import ScriptMode
from ampdoctor.live.recorder import Draft, Recorder
from ampdoctor.live.scaled_losses import ScaledLosses


class Listener(Protocol):
    """What wants to know of a loop's backwards and of its optimizers' turns, at the moment they come."""

    def function(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """A torch function that the script called outside modules."""

    def root(self, module: nn.Module, args: Any, kwargs: Any, call: Callable[[], Any]) -> Any:
        """The outputs of ``call``, which runs a module that no other module called."""

    def same(self, before: Any, after: Any) -> None:
        """``after`` is ``before`` multiplied by a loss scale."""

    def autocast_inside(self, dtype: torch.dtype) -> None:
        """A root module opened autocast itself."""

    def backward(self, root: Tensor, scaler: Any) -> None:
        """Backward is about to begin from ``root``, which ``scaler`` has scaled (None: nobody)."""

    @property
    def wants_skips(self) -> bool:
        """The next turn must know at once whether a fused optimizer skips inside, though it takes a wait."""

    def stepped_inside_backward(self) -> None:
        """Optimizers have moved weights while the last backward ran."""

    def optimizer_turn(self, draft: Draft, skipped: bool, optimizer: Any) -> None:
        """An optimizer is about to move the weights, or (``skipped``) its scaler has kept it from it.

        None for one with a closure: it has been called already.
        """


class Around:
    """The state of a watch that its parts share."""

    def __init__(self, recorder: Recorder, listener: Listener) -> None:
        self.recorder = recorder
        self.listener = listener
        self.losses = ScaledLosses()
        self.mode = ScriptMode(recorder, listener)
        self.mode.scaled_by_hand = self.losses.know_by_hand
        recorder.book.scaled_since = self._scaled_since
        self.module_depth = 0
        """1 inside a root module's call."""
        self.busy = False
        """What is called now is torch's own business, or ours."""
        self.scaler_step: tuple[Any, Draft] | None = None
        """The scaler whose step is running, and that event."""
        self.turn_after_backward: Draft | None = None
        """The step of an optimizer with a closure that has made no gradients yet."""
        self.stepped_inside: list[tuple[Any, int]] | None = None
        """While a backward runs: the optimizers that stepped inside it, each with how many parameters."""
        self._pid = os.getpid()

    def _scaled_since(self, gradient: Tensor) -> int | None:
        return self.recorder.last_grad if self.mode.scaled.carrier(gradient) == "gradient" else None

    @property
    def elsewhere(self) -> bool:
        """This is a forked process, such as a data loader's worker."""
        return os.getpid() != self._pid

    @property
    def off(self) -> bool:
        """Nothing is to be recorded now."""
        return self.busy or self.elsewhere

    def tell_turn(self, draft: Draft, skipped: bool, optimizer: Any) -> None:
        """Nothing; the listener knows of the turn. Whatever it calls meanwhile is no event."""
        outer, self.scaler_step = self.scaler_step, None
        try:
            with self.aside():
                self.listener.optimizer_turn(draft, skipped, optimizer)
        finally:
            self.scaler_step = outer

    def take_turn(self, draft: Draft, optimizer: Any = None) -> None:
        """Nothing; an optimizer is about to apply its gradients, without a scaler."""
        self.recorder.attempted(draft)
        figures = self.recorder.figures[-1]
        figures.norm = draft["norm"]
        figures.norm_is_scaled = bool(draft["gradients"].get("scaled"))
        self.tell_turn(draft, False, optimizer)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Torch's functions called inside are not the script's."""
        before = self.busy
        self.busy = True
        try:
            with self.mode.aside():
                yield
        finally:
            self.busy = before


def parameters_of(owner: Any) -> list[Tensor]:
    """The parameters of a module, of an optimizer, or of what wraps one."""
    if isinstance(owner, nn.Module):
        return list(owner.parameters())
    return [p for group in getattr(owner, "param_groups", ()) for p in group["params"]]


def device_of(parameters: list[Tensor]) -> str:
    """The type of the device they are on."""
    return parameters[0].device.type if parameters else "cpu"


def dtypes_of(parameters: list[Tensor]) -> str:
    """The dtypes of those that have a gradient: ``float16, float32``."""
    found = {p.dtype for p in parameters if p.grad is not None}
    return ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in found))


def autocast_dtype_of(outputs: Any) -> str:
    """The dtype of the autocast that is on where these are; '' for none."""
    device = outputs.device.type if isinstance(outputs, Tensor) else "cpu"
    if not torch.is_autocast_enabled(device):
        return ""
    return str(torch.get_autocast_dtype(device)).removeprefix("torch.")

"""The losses of a script's steps, captured as workloads at the moment of their backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ampdoctor.api.settings import config_of, precision_section
from ampdoctor.config import Config
from ampdoctor.errors import AmpDoctorError, ProbeError
from ampdoctor.live.recorder import Draft, Recorder, scale_of
from ampdoctor.load.script.buffers import Saved
from ampdoctor.load.script.optimizer import twin_of
from ampdoctor.load.script.replay import workload_of
from ampdoctor.load.script.tape import Tape
from ampdoctor.load.workload import Workload


@dataclass(frozen=True)
class Captured:
    """One backward of a step."""

    workload: Workload
    dtypes: tuple[torch.dtype, ...]
    """Of the autocast in it."""
    scaler: Any
    """The one that scaled it; None for none."""
    scale: Any
    """Of the scaler, at the optimizer's turn: a number, or a tensor where the scaler keeps it."""
    line: int
    """Of its backward; 0 where that is not known."""
    place: Any
    """All the lines that led to it: the same backward of several micro-batches is captured once."""
    optimizer: Any = None
    """Whose turn it is; None for one with a closure."""
    buffers: Sequence[Saved] = ()
    """What moved in its forward, as it was before: see ``put_back``."""

    def config(self, title: str, overrides: Sequence[str] = ()) -> Config:
        """How the script itself runs this loss, as a config."""
        scale = None if self.scaler is None or self.scale is None else float(self.scale)
        first = next(self.workload.model.parameters(), None)
        device = "cpu" if first is None else str(first.device)
        return loss_config(self.workload.model, self.dtypes, scale, device, title, overrides)


def loss_config(
    model: nn.Module,
    dtypes: Sequence[torch.dtype],
    scale: float | None,
    device: str,
    title: str,
    overrides: Sequence[str] = (),
    emulate: str | None = None,
) -> Config:
    """A config for a loss of this model that was computed under autocast in ``dtypes``.

    ``scale``: of its scaler, which goes on from where it is. Without one (None) FP16 is judged at 1, as BF16
    is by default.
    """
    low = [d for d in dtypes if d in (torch.float16, torch.bfloat16)]
    built = {p.dtype for p in model.parameters()}
    dtype = low[0] if low else torch.bfloat16 if torch.bfloat16 in built else torch.float16
    unscaled = 1.0 if torch.float16 in low else None
    precision = precision_section(
        dtype,
        mode="autocast" if low else "none",
        device=device,
        emulate=emulate,
        loss_scale=unscaled if scale is None else {"dynamic": scale or 1.0},
    )
    return config_of(title, overrides, precision=precision)


Turn = Callable[[list[Captured], Draft, bool], None]
"""Called with the losses that a step has captured, the optimizer's turn, and whether it is skipped."""


class Capture:
    """Listens to a loop: keeps its tape, and hands a step's losses on before its weights change."""

    def __init__(self, recorder: Recorder, turn: Turn, begins: Callable[[int], None]) -> None:
        self.recorder = recorder
        self.turn = turn
        self.begins = begins
        """Called with the number of each step that begins."""
        self.tape = Tape()
        self.not_replayed: dict[str, int] = {}
        """Why losses could not be run again -> how many."""
        self.asks_skips: Callable[[], bool] = lambda: True
        """Whether a turn's ``skipped`` matters next; where it does not, False may stand for a skip."""
        self._captured: list[Captured] = []

    def function(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Recorded on the tape."""
        self.tape.function(func, args, kwargs, out)

    def root(self, module: nn.Module, args: Any, kwargs: Any, call: Callable[[], Any]) -> Any:
        """Recorded on the tape; the outputs of the call."""
        return self.tape.root(module, args, kwargs, call)

    def same(self, before: Any, after: Any) -> None:
        """Recorded on the tape."""
        self.tape.same(before, after)

    def autocast_inside(self, dtype: torch.dtype) -> None:
        """Recorded on the tape."""
        self.tape.inner_autocast = dtype

    def backward(self, root: Tensor, scaler: Any) -> None:
        """The loss is captured as a workload, while weights are as they were in forward."""
        if self.recorder.step != self.tape.generation:
            self.tape.forget_before(self.recorder.step)
            self._captured.clear()
            self.begins(self.recorder.step)
        place = self.recorder.last_backward
        if any(known.place == place for known in self._captured):
            return
        try:
            workload, dtypes, buffers = workload_of(root, self.tape, self.recorder.script)
        except AmpDoctorError as error:
            self.not_captured(error)
            return
        line = place[0][1] if place else 0
        self._captured.append(Captured(workload, dtypes, scaler, 1.0, line, place, buffers=buffers))

    def not_captured(self, error: AmpDoctorError) -> None:
        """Nothing; a loss that could not be run again is counted."""
        self.not_replayed[error.message] = self.not_replayed.get(error.message, 0) + 1

    def stepped_inside_backward(self) -> None:
        """Nothing; the loss whose gradients were applied while they were made is not run again."""
        for _ in self._captured:
            self.not_captured(ProbeError("their optimizers step inside backward, from hooks of parameters"))
        self._captured.clear()

    @property
    def wants_skips(self) -> bool:
        """As whoever takes the turns says."""
        return self.asks_skips()

    def optimizer_turn(self, draft: Draft, skipped: bool, optimizer: Any) -> None:
        """The step's losses are handed on, with the optimizer whose turn it is (None: with a closure)."""
        captured, self._captured = self._captured, []
        build = None if optimizer is None else twin_of(optimizer)
        losses = [
            replace(
                loss,
                workload=replace(loss.workload, build_optimizer=build),
                optimizer=optimizer,
                scale=1.0 if loss.scaler is None else scale_of(loss.scaler),
            )
            for loss in captured
        ]
        self.turn(losses, draft, skipped)

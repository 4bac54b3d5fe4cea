"""``ampdoctor.FlightRecorder``: one line in a training script; the step in which it breaks is kept."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ampdoctor.api.flight import LOG, Flight, shelf_of
from ampdoctor.api.script_capture import Capture, Captured
from ampdoctor.live.recorder import Draft, Recorder
from ampdoctor.live.trigger import Trigger
from ampdoctor.live.watch import LoopWatch


class FlightRecorder:
    """Watches the training loop of this process from now on, until ``close()`` or the end of a ``with``.

    On the first step whose loss or gradients are not finite (beyond what a GradScaler settles by itself),
    that is the ``skips``-th skipped in a row, or whose loss is above ``loss_factor`` times the median of
    those before it, one bundle is written to ``directory`` before the optimizer changes the weights:
    the step's calls, batch, weights, buffers, generators, optimizer and scaler. ``ampdoctor replay`` runs
    it again. What fails in the recorder is logged (logger ``ampdoctor``), and the training goes on.

    Args:
        model: what is trained.
        optimizer: only its turns are looked at; left out: every optimizer's.
        scaler: the one that scales its losses; found by itself where it is a GradScaler.
        directory: made where it is missing; of several processes each has ``rank<N>`` in it.
        keep: the newest so many bundles stay.
        most_bytes: a bundle that would be larger is not written; None: any.
        skips: steps skipped in a row that are too many, once a step was taken.
        loss_factor: ``float("inf")``: a high loss is no reason.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        scaler: Any = None,
        *,
        directory: str | os.PathLike[str],
        keep: int = 20,
        most_bytes: int | None = None,
        skips: int = 8,
        loss_factor: float = 10.0,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
            raise TypeError(f"keep must be a whole number from 1 on, got {keep!r}")
        if isinstance(skips, bool) or not isinstance(skips, int) or skips < 1:
            raise TypeError(f"skips must be a whole number from 1 on, got {skips!r}")
        if most_bytes is not None and (not isinstance(most_bytes, int) or most_bytes < 1):
            raise TypeError(f"most_bytes must be a whole number from 1 on, or None, got {most_bytes!r}")
        if not isinstance(loss_factor, (int, float)) or not loss_factor >= 0:
            raise TypeError(f"loss_factor must be a number, 0 or above, got {loss_factor!r}")
        if scaler is not None and not hasattr(scaler, "state_dict"):
            raise TypeError(f"scaler must be a GradScaler, got {type(scaler).__name__}")
        # Accelerate's wrapper holds the one that steps
        self._optimizer: Any = getattr(optimizer, "optimizer", optimizer)
        if not isinstance(self._optimizer, (torch.optim.Optimizer, type(None))):
            raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
        recorder = Recorder(sys.argv[0] or "python")
        self._flight = Flight(recorder, shelf_of(directory, keep, most_bytes), Trigger(skips, loss_factor))
        capture = Capture(recorder, self._turn, lambda _: None)
        capture.asks_skips = lambda: False
        self._watch: LoopWatch | None = None
        if LoopWatch.is_open:
            LOG.warning(
                "this loop is watched already: FlightRecorder does nothing (use ampdoctor run --record)"
            )
            return
        self._watch = LoopWatch(recorder, capture)
        self._watch.__enter__()

    @property
    def bundles(self) -> list[Path]:
        """The folders written until now."""
        return list(self._flight.bundles)

    def close(self) -> None:
        """Nothing; the loop is no longer watched."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.__exit__()

    def __enter__(self) -> FlightRecorder:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _turn(self, captured: list[Captured], draft: Draft, skipped: bool) -> None:
        if self._optimizer is not None and captured and captured[0].optimizer is not self._optimizer:
            return
        self._flight.turn(captured, draft, skipped)

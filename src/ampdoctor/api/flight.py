"""A flight recorder at each optimizer's turn: looks at two numbers, and writes a bundle when it must."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ampdoctor.api.bundle_write import Incident, Shelf, write_step
from ampdoctor.api.script_capture import Captured
from ampdoctor.errors import AmpDoctorError, ConfigError
from ampdoctor.live.recorder import Draft, Recorder
from ampdoctor.live.trigger import Trigger, Turn

LOG = logging.getLogger("ampdoctor")
_TIMELINE = 200
"""Steps before the recorded one, in figures: what a person looks back on."""


class Flight:
    """Writes the step that goes wrong, before its weights change. The run goes on whatever fails here."""

    def __init__(self, recorder: Recorder, shelf: Shelf, trigger: Trigger) -> None:
        self.recorder = recorder
        self.shelf = shelf
        self.trigger = trigger
        self.bundles: list[Path] = []
        """Written by this run, in order."""
        self._refused: set[str] = set()

    def turn(self, captured: Sequence[Captured], draft: Draft, skipped: bool) -> None:
        """Nothing; the step is in a bundle where it is the first of its trouble."""
        try:
            self._look(captured, draft, skipped)
        except Exception as error:  # a training of days does not end because its recorder failed
            self._say(f"step {self.recorder.step:,} was not looked at: {_in_a_line(error)}")

    def _look(self, captured: Sequence[Captured], draft: Draft, skipped: bool) -> None:
        loss, norm, scale = _read([self.recorder.figures[-1].loss, draft.get("norm"), draft.get("scale")])
        scaled = bool(draft.get("scaler"))
        if norm is not None and not _is_finite(norm) and _all_finite(captured):
            norm = None  # only their sum of squares is beyond FP32
        # a fused optimizer's skip happens inside it, and is not known yet
        skipped = skipped or (scaled and norm is not None and not _is_finite(norm))
        key = int(draft.get("subject") or 0)
        turn = Turn(key, skipped, loss, norm, scale if scaled else None)
        median = self.trigger.median_loss(key)
        why = self.trigger.why(turn)
        if why is None:
            return
        figures = self.recorder.figures[-1]
        unscaled = norm / scale if norm is not None and scale and figures.norm_is_scaled else norm
        incident = Incident(self.recorder.step, why, loss, unscaled, median, self.trigger.skips)
        if not captured:
            self._say(f"step {incident.step:,} is not recorded: none of its losses could be kept")
        for one in captured:
            self._write(one, incident, several=len(captured) > 1)

    def _write(self, loss: Captured, incident: Incident, several: bool) -> None:
        step = f"step {incident.step:,}"
        try:
            timeline = self.recorder.timeline()[-_TIMELINE:]
            folder = write_step(loss, incident, timeline, self.shelf, several)
        except AmpDoctorError as error:
            self._say(f"{step} is not recorded: {error.message}")
        except OSError as error:
            self._say(f"{step} is not recorded in {self.shelf.directory}: {error.strerror or error}")
        except Exception as error:
            self._say(f"{step} is not recorded: {_in_a_line(error)}")
        else:
            self.bundles.append(folder)
            LOG.warning("%s is recorded: ampdoctor replay %s", step, folder)

    def _say(self, text: str) -> None:
        """Nothing; each reason is said once."""
        reason = text.partition(": ")[2] or text
        if reason not in self._refused:
            self._refused.add(reason)
            LOG.warning("%s", text)


def shelf_of(directory: str | os.PathLike[str], keep: int, most_bytes: int | None = None) -> Shelf:
    """Where this process puts its bundles: of several, each has its own. ConfigError for a file."""
    folder = Path(directory).absolute()
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{directory} is a file, and bundles go to a folder")
    if os.environ.get("WORLD_SIZE", "") not in ("", "0", "1"):
        folder /= f"rank{os.environ.get('RANK', '0')}"
    return Shelf(folder, keep, most_bytes)


def _in_a_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _read(values: list[Any]) -> list[float | None]:
    """The numbers; those of them that are on one device come over together, in one wait."""
    found: list[float | None] = [None if isinstance(v, Tensor) or v is None else float(v) for v in values]
    with torch.no_grad():
        by_device: dict[torch.device, list[int]] = {}
        for place, value in enumerate(values):
            if isinstance(value, Tensor):
                by_device.setdefault(value.device, []).append(place)
        for places in by_device.values():
            together = torch.stack([values[p].detach().reshape(()).double() for p in places]).tolist()
            for place, number in zip(places, together, strict=True):
                found[place] = number
    return found


def _all_finite(captured: Sequence[Captured]) -> bool:
    """Every gradient of the optimizer is known to be."""
    optimizer = captured[0].optimizer if captured else None
    if optimizer is None:
        return False
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    return all(bool(torch.isfinite(g.detach()).all()) for g in gradients if not g.is_sparse)


def _is_finite(number: float) -> bool:
    return number - number == 0

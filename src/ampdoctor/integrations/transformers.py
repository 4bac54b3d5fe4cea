"""``Trainer(..., callbacks=[FlightRecorderCallback("flight")])``, for Hugging Face's Trainer and its kin."""

from __future__ import annotations

import os
from typing import Any

from transformers import TrainerCallback

from ampdoctor.api.flight_recorder import FlightRecorder


class FlightRecorderCallback(TrainerCallback):
    """Keeps the step in which the training breaks; ``options`` are those of ``ampdoctor.FlightRecorder``."""

    def __init__(self, directory: str | os.PathLike[str], **options: Any) -> None:
        self.directory = directory
        self.options = options
        self.recorder: FlightRecorder | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The loop is watched from now on."""
        self._close()  # of a training that raised
        self.recorder = FlightRecorder(kwargs["model"], directory=self.directory, **self.options)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The loop is no longer watched."""
        self._close()

    def _close(self) -> None:
        if self.recorder is not None:
            self.recorder.close()

"""``lightning.Trainer(callbacks=[FlightRecorderCallback("flight")])``."""

from __future__ import annotations

import os
from typing import Any

from lightning.pytorch import Callback

from ampdoctor.api.flight_recorder import FlightRecorder


class FlightRecorderCallback(Callback):
    """Keeps the step in which the training breaks; ``options`` are those of ``ampdoctor.FlightRecorder``."""

    def __init__(self, directory: str | os.PathLike[str], **options: Any) -> None:
        super().__init__()
        self.directory = directory
        self.options = options
        self.recorder: FlightRecorder | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The loop is watched from now on."""
        self._close()
        self.recorder = FlightRecorder(pl_module, directory=self.directory, **self.options)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """The loop is no longer watched."""
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """The same for a training that raised."""
        self._close()

    def _close(self) -> None:
        if self.recorder is not None:
            self.recorder.close()

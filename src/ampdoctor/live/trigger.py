"""When a step is worth recording: not finite beyond a scaler's settling, too many skips, too high a loss."""

from __future__ import annotations

import collections
import math
import statistics
from dataclasses import dataclass

from ampdoctor.facts.words import RecordedFor


@dataclass(frozen=True)
class Turn:
    """An optimizer's turn, in figures."""

    key: int
    """The optimizer's number: each has losses of its own."""
    skipped: bool
    """Its scaler keeps it from stepping."""
    loss: float | None
    gradient_norm: float | None
    scale: float | None
    """Of its scaler; None without one."""


class Trigger:
    """Says of each turn whether it is the first of its trouble."""

    def __init__(self, skips_in_a_row: int = 8, loss_factor: float = 10.0) -> None:
        self.skips_in_a_row = skips_in_a_row
        """After a step was taken: a scaler that grew too far needs one or two. Before, it may halve to 1."""
        self.loss_factor = loss_factor
        """A loss above so many times the median of those before it; ``inf``: never."""
        self.skips = 0
        self._taken = False
        self._in_trouble = False
        self._losses: dict[int, collections.deque[float]] = {}

    def median_loss(self, key: int) -> float | None:
        """Of the last hundred finite losses; None for fewer than twenty."""
        losses = self._losses.get(key, ())
        return statistics.median(losses) if len(losses) >= _FEWEST else None

    def why(self, turn: Turn) -> RecordedFor | None:
        """Why to record it; None where nothing is wrong, or the step before was wrong already."""
        why = self._wrong(turn)
        first = why is not None and not self._in_trouble
        # a step skipped on the way to a lower scale is neither trouble nor its end
        if why is not None or not turn.skipped:
            self._in_trouble = why is not None
        return why if first else None

    def _wrong(self, turn: Turn) -> RecordedFor | None:
        loss = turn.loss
        self.skips = self.skips + 1 if turn.skipped else 0
        if loss is not None and not math.isfinite(loss):
            return "loss"
        if turn.skipped:
            too_many = self._taken and self.skips >= self.skips_in_a_row
            too_low = turn.scale is not None and turn.scale < 1
            return "skips" if too_many or too_low else None
        if turn.gradient_norm is not None and not math.isfinite(turn.gradient_norm):
            return "gradients"
        self._taken = True
        if loss is None:
            return None
        median = self.median_loss(turn.key)
        if median is not None and median > 0 and loss > self.loss_factor * median:
            return "spike"
        self._losses.setdefault(turn.key, collections.deque(maxlen=_MOST)).append(loss)
        return None


_FEWEST = 20
_MOST = 100

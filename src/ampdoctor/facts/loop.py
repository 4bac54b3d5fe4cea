"""The events of a training loop: what a script did around its steps, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ampdoctor.facts.site import Source
from ampdoctor.facts.words import EventKind, GradientKind


@dataclass(frozen=True)
class Event:
    """One thing that the loop did. What a kind has no use for keeps its default."""

    order: int
    """Position among all events, from 0."""
    step: int
    """The step of the loop it belongs to, from 0."""
    kind: EventKind
    source: Source | None
    """The innermost line of the user's (or of a library that is not torch)."""
    loop: Source | None = None
    """The line of the function that also called the last backward, on the way to ``source``."""
    condition: Source | None = None
    """The innermost ``if`` that the line stands under; None under none. Schedulers and zero_grad only."""
    subject: int = 0
    """A number for the optimizer, scaler, scheduler or autocast region; the same object has the same."""
    subject_type: str = ""
    scaler: int = 0
    """The scaler inside whose step it happened, or that was used; 0 for none."""
    scale: float | None = None
    """The scaler's scale when it began."""
    scale_after: float | None = None
    skipped: bool | None = None
    """Of a scaler's step: an infinity or NaN was found, and the optimizer's step did not take place."""
    gradients: Mapping[GradientKind, int] = field(default_factory=dict)
    """How many of the concerned parameters' gradients stood how before it."""
    accumulates_onto: int | None = None
    """The order of an earlier event. Of a backward: the earliest backward whose gradients it adds to, still
    scaled. Of an unscale: the earliest backward that it divides, without a scale if there is such a one; or
    the unscale before it. Of a scheduler: its optimizer's number."""
    finite: bool | None = None
    """The gradients concerned hold no NaN and no infinity (for a clip: their norm)."""
    value: float | None = None
    """The loss, a norm, a factor, a constant; of parameters changed: how many that made non-finite."""
    dtype: str = ""
    """``float16`` ... of a cast, an autocast region, a decay."""
    unchanged: float | None = None
    """Of a decay: the share of nonzero elements that kept their value."""
    detail: str = ""
    raised: str = ""
    """What torch raised in it: ``RuntimeError: ...``."""


@dataclass(frozen=True)
class Moment:
    """One step of the loop in figures. None: not measured."""

    step: int
    loss: float | None
    """Before it was scaled; of the step's last backward."""
    scale: float | None
    gradient_norm: float | None
    """2-norm over the optimizer's parameters, divided by the scale where they were scaled."""
    skipped: bool
    line: Source | None
    """Of the backward."""


@dataclass(frozen=True)
class RankScales:
    """What the updates of one scaler of one rank left."""

    rank: int
    scaler: int
    """Position among the rank's scalers, in the order of their first updates."""
    updates: int
    """How many of its updates are known, from the first."""
    changes: tuple[tuple[int, float], ...]
    """(update, scale after it): of the first, which is 0, and of each that left another scale than before."""


@dataclass(frozen=True)
class LoopTrace:
    """Everything seen of a script's loop."""

    script: str
    events: tuple[Event, ...]
    timeline: tuple[Moment, ...]
    complete: bool = True
    """False where events were too many to keep."""
    one_in: int = 1
    """The timeline has one in so many steps, and the last; all of a run of up to 20,000."""
    ranks: tuple[RankScales, ...] = ()
    """Of a run of several processes, on its first rank: the scales of all that answered."""

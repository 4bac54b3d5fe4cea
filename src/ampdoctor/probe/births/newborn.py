"""What the second look keeps while it follows values: births, what went into their ops, and casts."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from ampdoctor.facts.site import Site
from ampdoctor.facts.trace import Step
from ampdoctor.facts.words import Origin, Phase, Value
from ampdoctor.probe.watch.locator import Place


@dataclass
class Operand:
    """A tensor that went into the op of a birth, in numbers."""

    dtype: str
    shape: tuple[int, ...]
    absmax: float | None
    zeros: int
    infs: int
    nans: int
    made_by: Step | None


@dataclass
class Newborn:
    """A birth as the second look knows it, before the reference is asked about the same site."""

    id: int
    origin: Origin
    value: Value
    dtype: str
    order: int
    site: Site | None
    place: Place | None
    implicit_cast: bool
    name: str
    mask: Tensor
    """The elements born bad, on the host; shape as in ``shape``."""
    exact: Tensor | None
    """The op's output in float64 on the host, same shape; None where it could not be run."""
    inside: Tensor | None = None
    """The elements of what the op stores inside, where that went bad first: a loss is one number."""
    operands: tuple[Operand, ...] = ()
    argument: Tensor | None = None
    """What an op of one argument was given, on the host, same shape; None for other ops."""
    constant: float | None = None
    parents: tuple[int, ...] = ()
    path: list[Step] = field(default_factory=list)
    absorbed_at: Step | None = None
    reaches_loss: bool = False
    reaches_buffers: list[str] = field(default_factory=list)
    reaches_gradients: list[str] = field(default_factory=list)

    def in_phase(self, phase: Phase) -> bool:
        """An op of this phase made it."""
        return self.site is not None and self.site.phase == phase

    @property
    def came_from_nowhere(self) -> bool:
        """It lay in memory that no op had filled, and no tensor the step starts from: a constant, or made
        outside torch."""
        return self.origin == "declared" and self.place is None


@dataclass(frozen=True)
class Given:
    """A tensor that goes into an op."""

    tensor: Tensor
    """Its memory says where it came from; the op may be writing to it."""
    values: Tensor
    """As they are before the op."""
    births: frozenset[int]
    """Those whose values its memory holds, if it is not all finite."""


@dataclass(frozen=True)
class Cast:
    """A rounding that turned nonzero values into zero."""

    site: Site
    place: Place
    flushed: int
    maker: Step | None

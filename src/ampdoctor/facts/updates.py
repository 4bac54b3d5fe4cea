"""What an optimizer's steps do to parameters, next to the same steps on FP32 weights."""

from __future__ import annotations

from dataclasses import dataclass

from ampdoctor.facts.site import Source


@dataclass(frozen=True)
class StepLoss:
    """One step, over all parameters that can lose by it."""

    moved: int
    """Elements that it changes in the reference."""
    swallowed: int
    """Of those, elements that stay as they are here."""


@dataclass(frozen=True)
class UpdatePart:
    """One of several writes that make up a step on a parameter: AdamW's decay, then its update."""

    op: str
    """``aten::mul_``"""
    source: Source | None
    """The user's line; None for torch's own optimizers."""
    moved: int
    """Elements that this write changes in the reference."""
    swallowed: int
    """Of those, elements that it leaves as they are here."""
    proportional: bool
    """In the reference it changes each element by the same factor, towards zero: a weight decay."""


@dataclass(frozen=True)
class ParameterUpdate:
    """What an optimizer's last steps do to one parameter, against the same steps on FP32 weights.

    Counts are of elements, once for every step of the window.
    """

    name: str
    numel: int
    dtype: str
    moved: int
    """Elements that a step changes in the reference."""
    swallowed: int
    """Of those, elements that stay as they are here."""
    nan: int
    """Elements that the last step makes NaN; the reference's stay finite."""
    inf: int
    update: float | None
    """Median magnitude of the last step's changes in the reference; None where nothing moves."""
    spacing: float | None
    """Median distance from the weights that move to the next number of the dtype."""
    eps: float | None
    """The optimizer's eps for this parameter; None where it has none."""
    travelled: float | None = None
    """How far the reference moves in all steps together, in the 2-norm; None where it was not measured."""
    arrived: float | None = None
    """The part of that way which is covered here: 1 is all of it, 0 none. None where the reference ends where
    it began."""
    never_moves: bool = False
    """No element changes in any step, though the reference's do."""
    carried: bool = False
    """The optimizer keeps what rounding loses: FP32 weights of its own, or the error to add it later."""
    parts: tuple[UpdatePart, ...] = ()
    """The writes that make up one early step, where there are several; () where that was not looked at."""

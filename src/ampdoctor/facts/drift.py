"""Where a pass parts from the reference though everything is finite."""

from __future__ import annotations

from dataclasses import dataclass

from ampdoctor.facts.site import Site, Source
from ampdoctor.facts.words import DriftKind


@dataclass(frozen=True)
class Drift:
    """The op whose output is far off while its inputs still agree with the reference's.

    Errors are |x - x_ref| / |x_ref| in the 2-norm, over at most 4,096 evenly spread elements of a tensor.
    """

    batch: int
    site: Site
    source: Source | None
    kind: DriftKind
    error: float
    """Of the op's output."""
    input_error: float | None
    """The largest of its inputs'; None where no input has a twin in the reference (weights, the batch)."""
    largest_input: float | None
    """Largest magnitude that went in."""
    changed_at: Source | None = None
    """For a stale cast: the line that wrote to the weight after it had been cast."""
    weight: str = ""
    """For a stale cast: the weight."""
    scalar: bool = False
    """The op's output is a single number."""

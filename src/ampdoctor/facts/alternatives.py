"""What was run where no loss scale works."""

from __future__ import annotations

from dataclasses import dataclass

from ampdoctor.facts.words import AlternativeKind


@dataclass(frozen=True)
class AlternativeRun:
    """The candidate, run on every batch with one thing changed."""

    kind: AlternativeKind
    module: str
    """What runs in FP32 or at a scale of its own, with all inside it; '' for ``bfloat16``."""
    factor: float | None
    """What the module's own scale is, times the loss scale; None for the other kinds."""
    loss_scale: float
    """At which all of it was run."""
    works: bool
    """On every batch the gradients were finite, and none was harmed."""

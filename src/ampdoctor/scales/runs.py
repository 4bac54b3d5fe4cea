"""What running the candidate at a loss scale gave, next to what was predicted of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ampdoctor.facts.histogram import exponent_of
from ampdoctor.facts.trace import ScaleRun
from ampdoctor.scales.powers_of_two import ScalePoint, is_power_of_two


@dataclass(frozen=True)
class ScaleSeen:
    """What running the candidate at a scale gave, over all batches that were run there."""

    loss_scale: float
    finite: bool
    underflow_fraction: float | None
    """Counted; None where not finite."""


def every_tensor(run: ScaleRun) -> tuple[int, int]:
    """(zeroed, nonzero in the reference) over all low-precision tensors of the run's backward."""
    return run.zeroed, run.nonzero


def parameters(named: Callable[[str], bool]) -> Callable[[ScaleRun], tuple[int, int]]:
    """The same over the gradients that arrive at the parameters ``named`` holds for."""

    def count(run: ScaleRun) -> tuple[int, int]:
        compared = [p for p in run.parameters if p.lost is not None and named(p.name)]
        return sum(p.lost or 0 for p in compared), sum(p.reference_nonzero or 0 for p in compared)

    return count


def scales_seen(
    runs: Sequence[ScaleRun], count: Callable[[ScaleRun], tuple[int, int]] = every_tensor
) -> list[ScaleSeen]:
    """Per scale that every batch was run at, in rising order, the share that became zero.

    A scale at which one batch overflows is not finite, whatever batches were not run there.
    """
    batches = {r.batch for r in runs}
    found = []
    for scale in sorted({r.loss_scale for r in runs}):
        here = [r for r in runs if r.loss_scale == scale]
        finite = all(r.finite for r in here)
        if finite and {r.batch for r in here} != batches:
            continue
        counts = [count(r) for r in here] if finite else []
        zeroed, nonzero = sum(z for z, _ in counts), sum(n for _, n in counts)
        found.append(ScaleSeen(scale, finite, zeroed / nonzero if nonzero else None))
    return found


def with_runs(points: Sequence[ScalePoint], seen: Sequence[ScaleSeen]) -> list[ScalePoint]:
    """The points; where a scale was run, with the share that was seen there."""
    shares = {
        exponent_of(s.loss_scale): s.underflow_fraction
        for s in seen
        if s.underflow_fraction is not None and is_power_of_two(s.loss_scale)
    }
    return [
        replace(p, underflow_fraction=share, bound=None, run=True, predicted=p.underflow_fraction)
        if (share := shares.get(p.exponent)) is not None
        else p
        for p in points
    ]

"""What rounding leaves of the optimizer's first step: is the update lost, does it destroy weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ampdoctor.facts.floats import FLOAT_FORMATS
from ampdoctor.facts.trace import ParameterUpdate, Trace

SWALLOWED_SHARE = 0.5
"""More than this, and most of the model does not train. FP16 weights of 0.1 lose 98 % under SGD at 1e-4, and
nothing under Adam at 1e-3."""


@dataclass(frozen=True)
class UpdateDamage:
    """The step on all parameters that can lose by it together."""

    moved: int
    """Elements that the step changes in FP32."""
    swallowed: int
    """Of those, elements that do not change at all here."""
    most_swallowed: tuple[ParameterUpdate, ...]
    """Parameters that lose most of their update, worst first."""
    broken: tuple[ParameterUpdate, ...]
    """Parameters that the step leaves non-finite, and FP32's does not."""

    @property
    def share(self) -> float | None:
        """Elements swallowed, of those moved; None where nothing moves."""
        return self.swallowed / self.moved if self.moved else None

    @property
    def is_swallowed(self) -> bool:
        """Most of the model does not train."""
        return (self.share or 0.0) > SWALLOWED_SHARE


def update_damage(trace: Trace) -> UpdateDamage | None:
    """The damage of the first step; None where no step was taken, or nothing in it rounds."""
    step = trace.optimizer_step
    if step is None or not step.updates:
        return None
    low = [u for u in step.updates if step.casts_to or u.dtype in ("float16", "bfloat16")]
    lost = [u for u in low if (share(u) or 0.0) > SWALLOWED_SHARE]
    return UpdateDamage(
        moved=sum(u.moved for u in low),
        swallowed=sum(u.swallowed for u in low),
        most_swallowed=tuple(sorted(lost, key=lambda u: (-(share(u) or 0.0), -u.moved))),
        broken=tuple(u for u in step.updates if u.nan or u.inf),
    )


def share(update: ParameterUpdate) -> float | None:
    """Elements swallowed, of those the reference moves; None where it moves none."""
    return update.swallowed / update.moved if update.moved else None


def eps_vanishes(update: ParameterUpdate) -> bool:
    """The optimizer's eps is 0 in this parameter's format."""
    return update.eps is not None and 0 < update.eps <= FLOAT_FORMATS[update.dtype].flush_at


def eps_breaks(broken: Sequence[ParameterUpdate]) -> bool:
    """An eps that vanished explains weights that the step destroyed."""
    return any(eps_vanishes(u) for u in broken)

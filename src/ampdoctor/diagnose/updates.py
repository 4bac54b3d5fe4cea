"""What rounding leaves of the optimizer's steps: updates lost, or parts of them, and weights destroyed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ampdoctor.facts.floats import FLOAT_FORMATS
from ampdoctor.facts.trace import OptimizerStep, Trace
from ampdoctor.facts.updates import ParameterUpdate, UpdatePart
from ampdoctor.scales.gradient_harm import without_noise
from ampdoctor.scales.powers_of_two import LOW_PRECISION

SWALLOWED_SHARE = 0.5
"""More than this, and most of the model does not train. FP16 weights of 0.1 lose 98 % under SGD at 1e-4, and
nothing under Adam at 1e-3."""
ARRIVES = 0.8
"""Of the way that FP32 weights go from the same gradients. Where more of it is covered, the lost steps are
the small ones, or others make up for them. BF16 weights cover 0.2 under Adam at 1e-4, 0.98 at 1e-3."""
NEVER = 0.99
"""A part of the update that leaves more of its elements as they are does nothing."""


@dataclass(frozen=True)
class UpdateDamage:
    """The steps on all parameters that can lose by them together."""

    moved: int
    """Elements that the last steps change in FP32."""
    swallowed: int
    """Of those, elements that do not change at all here."""
    arrived: float | None
    """The part of FP32's way that is covered here; None where it was not measured."""
    most_swallowed: tuple[ParameterUpdate, ...]
    """Parameters that lose most of their update, worst first."""
    never: tuple[ParameterUpdate, ...]
    """Parameters of which no element moves in any step."""
    lost_parts: tuple[tuple[ParameterUpdate, UpdatePart], ...]
    """Writes of the step that do nothing, where others of the same step on the same parameter do."""
    broken: tuple[ParameterUpdate, ...]
    """Parameters that the last step leaves non-finite, and FP32's does not."""

    @property
    def share(self) -> float | None:
        """Elements swallowed, of those moved; None where nothing moves."""
        return self.swallowed / self.moved if self.moved else None

    @property
    def is_swallowed(self) -> bool:
        """Most of the model does not train."""
        in_lost = sum(u.swallowed for u in self.most_swallowed)
        together = (self.share or 0.0) > SWALLOWED_SHARE and not _arrives(self.arrived)
        return together or in_lost > SWALLOWED_SHARE * self.moved

    @property
    def harms(self) -> bool:
        """Something of the optimizer's is lost for good: weights, their training, or a part of it."""
        return bool(self.is_swallowed or self.never or self.lost_parts or self.broken)


def update_damage(trace: Trace) -> UpdateDamage | None:
    """The damage of the steps; None where none was taken, or nothing in them rounds."""
    step = trace.optimizer_step
    if step is None or not step.updates:
        return None
    noise = _noise(trace)
    low = [
        u
        for u in step.updates
        if step.casts_to or u.dtype in LOW_PRECISION
        # What is rounded by chance is lost in one step and made up for in another.
        if not (step.draws or u.carried or u.name in noise)
    ]
    arrived = _together(low)
    lost = [u for u in low if (share(u) or 0.0) > SWALLOWED_SHARE and not _arrives(u.arrived)]
    return UpdateDamage(
        moved=sum(u.moved for u in low),
        swallowed=sum(u.swallowed for u in low),
        arrived=arrived,
        most_swallowed=tuple(sorted(lost, key=lambda u: (-(share(u) or 0.0), -u.moved))),
        never=tuple(u for u in low if u.never_moves),
        lost_parts=tuple((u, part) for u in low for part in _lost_parts(u)),
        broken=() if step.fp32_diverges_at is not None else tuple(u for u in step.updates if u.nan or u.inf),
    )


def share(update: ParameterUpdate | UpdatePart) -> float | None:
    """Elements swallowed, of those the reference moves; None where it moves none."""
    return update.swallowed / update.moved if update.moved else None


def eps_vanishes(update: ParameterUpdate) -> bool:
    """The optimizer's eps is 0 in this parameter's format."""
    return update.eps is not None and 0 < update.eps <= FLOAT_FORMATS[update.dtype].flush_at


def eps_breaks(broken: Sequence[ParameterUpdate]) -> bool:
    """An eps that vanished explains weights that the step destroyed."""
    return any(eps_vanishes(u) for u in broken)


def destroying_step(step: OptimizerStep) -> str:
    """``The first step``, ``Step 7``: the last one taken, which left weights non-finite."""
    last = len(step.by_step) - 1
    return f"Step {last}" if last > 0 else "The first step"


def module_of(updates: Iterable[ParameterUpdate]) -> str:
    """The path of the module whose parameters these are; '' where they are of several, or there are none."""
    modules = {u.name.rpartition(".")[0] for u in updates}
    return modules.pop() if len(modules) == 1 else ""


def _lost_parts(update: ParameterUpdate) -> list[UpdatePart]:
    """The writes that change next to nothing of what they change in FP32, where some other does."""
    acting = [part for part in update.parts if part.moved]
    lost = [part for part in acting if (share(part) or 0.0) > NEVER]
    return lost if len(lost) < len(acting) else []


def _together(updates: Iterable[ParameterUpdate]) -> float | None:
    """The part of all ways together that is covered."""
    ways = [(u.arrived, u.travelled**2) for u in updates if u.arrived is not None and u.travelled]
    length = math.fsum(square for _, square in ways)
    return math.fsum(arrived * square for arrived, square in ways) / length if length else None


def _arrives(arrived: float | None) -> bool:
    return arrived is not None and arrived >= ARRIVES


def _noise(trace: Trace) -> set[str]:
    """Parameters whose gradient is rounding noise around zero, in every batch where FP32 has one."""
    noisy: set[str] = set()
    telling: set[str] = set()
    for candidate in trace.passes:
        if candidate.role == "candidate":
            kept = {p.name for p in without_noise(candidate.parameters)}
            telling |= kept
            noisy |= {p.name for p in candidate.parameters} - kept
    return noisy - telling

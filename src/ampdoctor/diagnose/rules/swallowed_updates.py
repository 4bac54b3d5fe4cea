"""AMP301: updates swallowed by rounding

What it means
    The weights are stored in FP16 or BF16, and the optimizer adds to them
    less than half the distance to the next number of the format. The sum
    rounds back to the old weight: it does not train, while loss and gradients
    look healthy. At 0.1 that distance is 6e-5 in FP16 and 5e-4 in BF16.

How it is found
    With `optimizer` in the config and weights in low precision, one step is
    taken on a copy, and the same step in FP32. Elements that FP32 moves and
    that stay as they are here are swallowed. An error where they are more
    than half of all elements, or where the step leaves weights non-finite; a
    warning where single parameters lose more than half.

What to do
    Keep the weights in FP32 and compute in low precision: torch.autocast
    instead of model.half(). Or an optimizer that keeps an FP32 master copy,
    or rounds stochastically, or carries the rounding error along (Kahan
    summation). A larger learning rate only moves the limit. An optimizer that
    casts inside must bring its input to size before the cast.

Example
    model.half() and SGD at 1e-4: updates of 6e-7 on weights of 0.1; 98 % of
    the elements never change.

Sources
    Nerogar/OneTrainer#146 (FP16), pytorch/ao#1124 and
    pytorch/torchtune#2254 (BF16), Micikevicius et al., Mixed Precision
    Training, section 3.1.
"""

from __future__ import annotations

from collections.abc import Iterator

from ampdoctor.diagnose.amounts import updates_lost
from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.rule import Rule
from ampdoctor.diagnose.updates import UpdateDamage, eps_breaks, share, update_damage
from ampdoctor.diagnose.verdict import Reading
from ampdoctor.diagnose.wording import count_words, format_name, listing, number, percent
from ampdoctor.facts.trace import OptimizerStep
from ampdoctor.facts.words import Severity

_REMEDY = (
    "Keep the weights in FP32 and use torch.autocast, or an optimizer with an FP32 master copy or stochastic "
    "rounding."
)
_REMEDY_INSIDE = "Normalise before the cast, not after it, or cast to torch.bfloat16, whose range is FP32's."


def check(reading: Reading) -> Iterator[Finding]:
    """One finding for the step: how much of it rounding swallows, or which weights it destroys."""
    step, damage = reading.trace.optimizer_step, update_damage(reading.trace)
    if step is None or damage is None:
        return
    if damage.broken and not eps_breaks(damage.broken):
        yield _finding("error", step, damage, _broken(step, damage))
    elif damage.is_swallowed:
        yield _finding("error", step, damage, _swallowed(step, damage))
    elif damage.most_swallowed:
        yield _finding("warning", step, damage, _in_part(step, damage))


def _swallowed(step: OptimizerStep, damage: UpdateDamage) -> str:
    if step.casts_to:
        return (
            f"{step.optimizer} casts to {format_name(step.casts_to)} here, which rounds to zero. Of the "
            f"{damage.moved:,} weight elements that it moves with this in FP32, {percent(damage.share)} "
            f"stay as they are: {listing([u.name for u in damage.most_swallowed])}."
        )
    return (
        f"{percent(damage.share)} of the {damage.moved:,} weight elements that {step.optimizer} moves in "
        f"FP32 stay as they are in {_formats(damage)}: {_worst(damage)}."
    )


def _in_part(step: OptimizerStep, damage: UpdateDamage) -> str:
    most = damage.most_swallowed
    if step.casts_to:
        return (
            f"{step.optimizer} casts to {format_name(step.casts_to)} here, which rounds most of the update "
            f"of {listing([u.name for u in most])} to zero."
        )
    lose = "loses" if len(most) == 1 else "lose"
    return (
        f"{count_words(len(most), 'parameter')} {lose} most of {step.optimizer}'s first step to "
        f"{_formats(damage)}: {_worst(damage)}."
    )


def _worst(damage: UpdateDamage) -> str:
    worst = damage.most_swallowed[0]
    return (
        f"worst {worst.name} with {percent(share(worst))}, where updates of {number(worst.update)} meet "
        f"weights {number(worst.spacing)} apart"
    )


def _broken(step: OptimizerStep, damage: UpdateDamage) -> str:
    elements = sum(u.nan + u.inf for u in damage.broken)
    other = f"without the cast to {format_name(step.casts_to)}" if step.casts_to else "in FP32"
    return (
        f"The first step of {step.optimizer} leaves {count_words(elements, 'weight element')} non-finite, in "
        f"{listing([u.name for u in damage.broken])}; {other} all stay finite."
    )


def _formats(damage: UpdateDamage) -> str:
    updates = damage.most_swallowed or damage.broken
    return " and ".join(dict.fromkeys(format_name(u.dtype) for u in updates))


def _finding(severity: Severity, step: OptimizerStep, damage: UpdateDamage, message: str) -> Finding:
    return Finding(
        code=CODE,
        severity=severity,
        title=TITLE,
        module="",
        op="",
        source=step.source,
        message=message,
        evidence={
            "optimizer": step.optimizer,
            "moved": damage.moved,
            "swallowed": damage.swallowed,
            "share": damage.share,
            "parameters": {u.name: share(u) for u in damage.most_swallowed},
            "non_finite": {u.name: u.nan + u.inf for u in damage.broken},
            "op": step.birth.site.op if damage.broken and step.birth and step.birth.site else None,
        },
        amounts=updates_lost(damage.swallowed, damage.moved),
        remedy=_REMEDY_INSIDE if step.casts_to else _REMEDY,
    )


CODE, TITLE = "AMP301", "updates swallowed by rounding"
RULE = Rule(CODE, TITLE, "error", __doc__ or "", check)

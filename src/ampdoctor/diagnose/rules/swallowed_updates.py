"""AMP301: updates swallowed by rounding

What it means
    The weights are stored in FP16 or BF16, and the optimizer adds to them
    less than half the distance to the next number of the format. The sum
    rounds back to the old weight: it does not train, while loss and gradients
    look healthy. At 0.1 that distance is 6e-5 in FP16 and 5e-4 in BF16.

How it is found
    With `optimizer` in the config, 25 steps (`optimizer: {steps: N}`) are
    taken on a copy, over the batches in turn, and the same gradients step
    FP32 weights. Adam's first update is its learning rate, whatever the
    gradient: the last fifth of the steps is counted. Elements that FP32 moves
    and that stay as they are here are swallowed. An error where they are more
    than half of all elements and less than 0.8 of FP32's way is covered, or
    where a whole parameter never moves, or a part of the step does nothing (a
    decay of 1e-4 rounds back to the weight, while the update arrives), or
    where a step leaves weights non-finite; a warning where single parameters
    lose more than half. Optimizers that keep what rounding loses (an FP32
    copy, Kahan's sum) lose nothing by it; one that draws random numbers, as
    stochastic rounding does, is not judged.

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

from collections.abc import Iterable, Iterator

from ampdoctor.diagnose.amounts import updates_lost
from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.rule import Rule
from ampdoctor.diagnose.updates import (
    UpdateDamage,
    destroying_step,
    eps_breaks,
    module_of,
    share,
    update_damage,
)
from ampdoctor.diagnose.verdict import Reading
from ampdoctor.diagnose.wording import count_words, format_name, listing, number, percent, short_op
from ampdoctor.facts.trace import OptimizerStep
from ampdoctor.facts.words import Severity
from ampdoctor.scales.powers_of_two import LOW_PRECISION

_REMEDY = (
    "Keep the weights in FP32 and use torch.autocast, or an optimizer with an FP32 master copy or stochastic "
    "rounding."
)
_REMEDY_INSIDE = "Normalise before the cast, not after it, or cast to torch.bfloat16, whose range is FP32's."


def check(reading: Reading) -> Iterator[Finding]:
    """One finding for the steps: how much of them rounding swallows, or which weights they destroy."""
    step, damage = reading.trace.optimizer_step, update_damage(reading.trace)
    if step is None or damage is None:
        return
    if damage.broken:
        if not eps_breaks(damage.broken):
            yield _finding("error", step, damage, _broken(step, damage))
    elif damage.harms:
        yield _finding("error", step, damage, " ".join(_harms(step, damage)))
    elif damage.most_swallowed:
        yield _finding("warning", step, damage, _in_part(step, damage))


def _harms(step: OptimizerStep, damage: UpdateDamage) -> Iterator[str]:
    if damage.is_swallowed:
        yield _swallowed(step, damage)
    if damage.never:
        names = listing([u.name for u in damage.never])
        yield f"{names}: no element moves in {count_words(len(step.by_step), 'step')}; in FP32 it does."
    if damage.lost_parts:
        yield _lost_part(step, damage)


def _swallowed(step: OptimizerStep, damage: UpdateDamage) -> str:
    worst = damage.most_swallowed
    if step.casts_to:
        what = f"Of the {damage.moved:,} weight elements that it moves with this in FP32"
        named = f": {listing([u.name for u in worst])}" if worst else ""
        return (
            f"{step.optimizer} casts to {format_name(step.casts_to)} here, which rounds to zero. {what}, "
            f"{percent(damage.share)} stay as they are{named}.{_when(step)}"
        )
    named = f": {_worst(damage)}" if worst else ""
    return (
        f"{percent(damage.share)} of the {damage.moved:,} weight elements that {step.optimizer} moves in "
        f"FP32 stay as they are in {_formats(step)}{named}.{_when(step)}"
    )


def _when(step: OptimizerStep) -> str:
    """Which steps were counted, and what the first alone would have shown."""
    last = len(step.by_step) - 1
    if last < 1:
        return ""
    first = step.by_step[0]
    alone = percent(first.swallowed / first.moved) if first.moved else "nothing moves"
    counted = f"steps {last + 1 - step.window} to {last}" if step.window > 1 else f"step {last}"
    return f" (Counted in {counted}; in step 0: {alone}.)"


def _lost_part(step: OptimizerStep, damage: UpdateDamage) -> str:
    parts = [part for _, part in damage.lost_parts]
    decay = all(part.proportional for part in parts)
    moved = sum(part.moved for part in parts)
    what = "weight decay" if decay else f"part {listing(_once(short_op(p.op) for p in parts), 2)}"
    changed = percent(sum(part.moved - part.swallowed for part in parts) / moved)
    return (
        f"The {what} of {step.optimizer} changes {changed} of the {moved:,} weight elements that it changes "
        f"in FP32, in {listing(_once(u.name for u, _ in damage.lost_parts))}; the rest of the step arrives."
    )


def _once(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _in_part(step: OptimizerStep, damage: UpdateDamage) -> str:
    most = damage.most_swallowed
    if step.casts_to:
        return (
            f"{step.optimizer} casts to {format_name(step.casts_to)} here, which rounds most of the update "
            f"of {listing([u.name for u in most])} to zero.{_when(step)}"
        )
    lose = "loses" if len(most) == 1 else "lose"
    return (
        f"{count_words(len(most), 'parameter')} {lose} most of {step.optimizer}'s steps to "
        f"{_formats(step)}: {_worst(damage)}.{_when(step)}"
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
    by = f" by {short_op(step.birth.site.op)}" if step.birth and step.birth.site else ""
    return (
        f"{destroying_step(step)} of {step.optimizer} leaves {count_words(elements, 'weight element')} "
        f"non-finite{by}, in {listing([u.name for u in damage.broken])}; {other} all stay finite."
    )


def _formats(step: OptimizerStep) -> str:
    low = (u.dtype for u in step.updates if u.dtype in LOW_PRECISION)
    return " and ".join(dict.fromkeys(format_name(dtype) for dtype in low))


def _finding(severity: Severity, step: OptimizerStep, damage: UpdateDamage, message: str) -> Finding:
    birth = step.birth if damage.broken else None
    return Finding(
        code=CODE,
        severity=severity,
        title=TITLE,
        module=module_of(damage.broken),
        op=birth.site.op if birth and birth.site else "",
        source=(birth.line if birth else None) or step.source,
        message=message,
        evidence={
            "optimizer": step.optimizer,
            "moved": damage.moved,
            "swallowed": damage.swallowed,
            "share": damage.share,
            "parameters": {u.name: share(u) for u in damage.most_swallowed},
            "non_finite": {u.name: u.nan + u.inf for u in damage.broken},
            "op": birth.site.op if birth and birth.site else None,
            "steps": len(step.by_step),
            "window": step.window,
            "share_by_step": [s.swallowed / s.moved if s.moved else None for s in step.by_step],
            "arrived": damage.arrived,
            "never_move": [u.name for u in damage.never],
            "lost_parts": {f"{u.name} {part.op}": share(part) for u, part in damage.lost_parts},
        },
        amounts=updates_lost(damage.swallowed, damage.moved),
        remedy=_REMEDY_INSIDE if step.casts_to else _REMEDY,
    )


CODE, TITLE = "AMP301", "updates swallowed by rounding"
RULE = Rule(CODE, TITLE, "error", __doc__ or "", check)

"""What a finding weighs, in numbers: for a gate's ``by how much``, and to tell whether a known one grew."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ampdoctor.diagnose.wording import count_words, number, percent, scale
from ampdoctor.facts.words import Value


@dataclass(frozen=True)
class Amounts:
    """What a finding weighs, as the rule that makes it says. None: it has no such measure."""

    by: str = ""
    """The one that tells most, in a few words: ``6.1 % past 65,504``; '' for what has no measure."""
    overflow_bits: float | None = None
    """Bits between the end of the format and the largest exact value, or else FP32's."""
    headroom_bits: float | None = None
    """Bits left."""
    share: float | None = None
    """Of the tensor's elements that are bad, or of the updates that are lost."""
    lost: float | None = None
    """Share of the gradient that rounding zeroed."""
    drift: float | None = None
    """The worst relative error of a gradient."""
    scale_bits: float | None = None
    """Bits between the configured loss scale and the window that works."""


NOTHING = Amounts()


def bad_elements(value: Value, count: int, numel: int) -> Amounts:
    """Elements born bad, of those of their tensor."""
    if not count or not numel:
        return NOTHING
    what = "NaN" if value == "nan" else "inf"
    return Amounts(f"{count:,} of {count_words(numel, 'element')} {what}", share=count / numel)


def past_the_end(largest: float, exact: float, share: float | None) -> Amounts:
    """How far ``exact`` lies past the ``largest`` value of a format, and the share of such elements."""
    bits = math.log2(abs(exact) / largest)
    past = f"{bits:.1f} bits" if bits >= 1 else percent(2**bits - 1)
    return Amounts(f"{past} past {number(largest)}", overflow_bits=bits, share=share)


def headroom_left(bits: float, asked_for: float) -> Amounts:
    """Headroom, and the limit it is under."""
    return Amounts(f"{bits:.1f} bits left, {asked_for:g} asked for", headroom_bits=bits)


def updates_lost(swallowed: int, moved: int) -> Amounts:
    """Elements that a step moves in FP32 only, of those it moves there."""
    if not moved:
        return NOTHING
    return Amounts(f"{swallowed:,} of {count_words(moved, 'update')} lost", share=swallowed / moved)


def gradient_lost(share: float | None, loss_scale: float) -> Amounts:
    """The share of the gradient that is lost at this scale."""
    if share is None:
        return NOTHING
    return Amounts(f"{percent(share)} of the gradient lost at loss scale {scale(loss_scale)}", lost=share)


def off_reference(errors: Iterable[float | None]) -> Amounts:
    """The worst of these relative errors."""
    worst = max((e for e in errors if e is not None and math.isfinite(e)), default=None)
    return NOTHING if worst is None else Amounts(f"{percent(worst)} off FP32", drift=worst)


def outside_window(configured: float, low: float, high: float) -> Amounts:
    """How far a loss scale lies outside the window."""
    bits = max(math.log2(configured / high), math.log2(low / configured), 0.0)
    return Amounts(f"{bits:.0f} bits outside the window", scale_bits=bits)

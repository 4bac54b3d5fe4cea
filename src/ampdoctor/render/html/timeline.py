"""The steps of a run as a chart: loss and loss scale over the steps, as points in percent of the plot."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ampdoctor.diagnose.wording import number, scale
from ampdoctor.facts.loop import Moment

_MOST_POINTS = 600
"""Points of a line at most: more than the plot has pixels on a phone."""
_MOST_ROWS = 100
"""Rows of the table at most."""
_MARKS = 5
"""Steps that the axis names, at most."""


@dataclass(frozen=True)
class Line:
    """One figure over the steps."""

    name: str
    segments: tuple[str, ...]
    """``x,y x,y ...`` of each stretch that is finite, for a polyline; y from the top."""
    high: str
    low: str
    """In words: what the upper and the lower edge stand for."""
    broken: tuple[float, ...]
    """Where it is inf or NaN: percent of the width."""
    words: str


@dataclass(frozen=True)
class Mark:
    """A step that the axis names."""

    words: str
    at: float


@dataclass(frozen=True)
class Row:
    """One step in words."""

    step: str
    loss: str
    scale: str
    norm: str
    skipped: bool


@dataclass(frozen=True)
class Timeline:
    """Loss and loss scale of the steps, one over the other."""

    lines: tuple[Line, ...]
    skips: tuple[float, ...]
    """Steps that were skipped: percent of the width."""
    marks: tuple[Mark, ...]
    rows: tuple[Row, ...]
    every: int
    """The table has one step in so many, and those that were skipped."""


def timeline(moments: Sequence[Moment]) -> Timeline | None:
    """The chart of at least two steps; None of fewer."""
    if len(moments) < 2:
        return None
    first, last = moments[0].step, moments[-1].step

    def at(step: int) -> float:
        return 100 * (step - first) / max(last - first, 1)

    lines = [
        _line("Loss", moments, [m.loss for m in moments], at, number, False),
        _line("Loss scale", moments, [m.scale for m in moments], at, scale, True),
    ]
    every = math.ceil(len(moments) / _MOST_ROWS)
    shown = [m for i, m in enumerate(moments) if i % every == 0 or m.step == last]
    skipped = [m for m in moments if m.skipped]
    rows = {m.step: m for m in (*shown, *skipped[:_MOST_ROWS])}
    return Timeline(
        tuple(line for line in lines if line is not None),
        tuple(at(m.step) for m in skipped[:_MOST_POINTS]),
        tuple(Mark(f"{step:,}", at(step)) for step in _ticks(first, last)),
        tuple(_row(rows[step]) for step in sorted(rows)),
        every,
    )


def _line(
    name: str,
    moments: Sequence[Moment],
    values: Sequence[float | None],
    at: Callable[[int], float],
    word: Callable[[float], str],
    powers: bool,
) -> Line | None:
    """None where no step has the figure. ``powers``: drawn by its exponent, in steps."""
    known = [v for v in values if v is not None and math.isfinite(v) and (v > 0 or not powers)]
    if not any(v is not None for v in values):
        return None
    low, high = min(known, default=0.0), max(known, default=0.0)

    def height(value: float) -> float:
        a, b, v = (math.log2(x) for x in (low, high, value)) if powers else (low, high, value)
        return 96 - 92 * (v - a) / (b - a) if b > a else 50.0

    segments: list[list[str]] = [[]]
    before: float | None = None
    stride = math.ceil(len(moments) / _MOST_POINTS)
    for index, (moment, value) in enumerate(zip(moments, values, strict=True)):
        if value is None or not math.isfinite(value) or (powers and value <= 0):
            segments.append([])
            before = None
            continue
        if value == before if powers else index % stride:
            continue
        x = f"{at(moment.step):.2f}"
        if powers and before is not None:
            segments[-1].append(f"{x},{height(before):.2f}")
        segments[-1].append(f"{x},{height(value):.2f}")
        before = value
    if before is not None:
        segments[-1].append(f"{at(moments[-1].step):.2f},{height(before):.2f}")
    broken = [
        at(m.step) for m, v in zip(moments, values, strict=True) if v is not None and not math.isfinite(v)
    ]
    given = [v for v in values if v is not None]
    words = f"{word(given[0])} in the first step, {word(given[-1])} in the last"
    if known:
        words += f", between {word(low)} and {word(high)}"
    return Line(
        name,
        tuple(" ".join(points) for points in segments if points),
        word(high) if known else "",
        word(low) if high > low else "",
        tuple(broken[:_MOST_POINTS]),
        words,
    )


def _row(moment: Moment) -> Row:
    def words(value: float | None, word: Callable[[float], str]) -> str:
        return "" if value is None else word(value)

    return Row(
        f"{moment.step:,}",
        words(moment.loss, number),
        words(moment.scale, scale),
        words(moment.gradient_norm, number),
        moment.skipped,
    )


def _ticks(first: int, last: int) -> list[int]:
    width = 10 ** math.floor(math.log10(max(last - first, 1)))
    steps = (max(width // 5, 1), max(width // 2, 1), width, 2 * width)
    step = next(s for s in steps if (last - first) / s <= _MARKS)
    return [tick for tick in range(first, last + 1) if tick % step == 0]

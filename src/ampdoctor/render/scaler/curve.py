"""The loss scale over the steps, drawn in characters: one column per step, or per few."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ampdoctor.diagnose.wording import scale
from ampdoctor.facts.training import StepRecord

_MOST_ROWS = 12
_ROOM_ABOVE = 3
"""Powers of two shown above the highest scale, for the thresholds that lie there."""
_LOWEST = -149
"""Exponent of FP32's smallest number: a scale below it is 0."""


@dataclass(frozen=True)
class Strokes:
    """The characters a curve is made of."""

    level: str
    between: str
    fall: tuple[str, str]
    """Where it leaves the upper row, and where it meets the lower one."""
    rise: tuple[str, str]
    """Where it meets the upper row, and where it leaves the lower one."""
    threshold: str
    skip: str


UNICODE = Strokes("─", "│", ("╮", "╰"), ("╭", "╯"), "·", "x")
ASCII = Strokes("-", "|", ("+", "+"), ("+", "+"), ".", "x")


@dataclass(frozen=True)
class Column:
    """One column of the picture."""

    scale: float
    """The loss scale with which it begins."""
    exponent: int
    """Of that."""
    threshold: int | None
    """Exponent of the highest scale that works for all steps of this column; None where one has none."""
    skipped: bool
    """Some step of it was."""


@dataclass(frozen=True)
class Curve:
    """Lines of equal width, and what stands left of them."""

    labels: tuple[str, ...]
    """The highest loss scale that a line draws; where it draws none, the power of two that it stands for."""
    lines: tuple[str, ...]
    skips: str
    first: int
    last: int
    """Steps of the first and the last column."""


def columns_of(steps: Sequence[StepRecord], width: int) -> list[Column]:
    """At most ``width`` columns: steps are put together, or drawn wider where there are few."""
    if len(steps) <= width:
        times = max(1, min(4, width // len(steps)))
        return [column for step in steps for column in [_column([step])] * times]
    bounds = [i * len(steps) // width for i in range(width + 1)]
    return [_column(steps[a:b]) for a, b in pairwise(bounds)]


def draw(steps: Sequence[StepRecord], width: int, unicode: bool) -> Curve:
    """The curve of at least one step, ``width`` characters wide at most."""
    columns, strokes = columns_of(steps, width), UNICODE if unicode else ASCII
    highest = max(c.exponent for c in columns)
    near = (c.threshold for c in columns if c.threshold and c.threshold <= highest + _ROOM_ABOVE)
    top = max([highest, *near])
    bottom = min(c.exponent for c in columns)
    per_row = math.ceil((top - bottom + 1) / _MOST_ROWS)
    rows = [(top - c.exponent) // per_row for c in columns]
    count = (top - bottom) // per_row + 1
    grid = [[" "] * len(columns) for _ in range(count)]
    for x, column in enumerate(columns):
        if column.threshold is not None and bottom <= column.threshold <= top:
            grid[(top - column.threshold) // per_row][x] = strokes.threshold
    for x, row in enumerate(rows):
        before = rows[x - 1] if x else row
        for y in range(min(before, row) + 1, max(before, row)):
            grid[y][x] = strokes.between
        if row == before:
            grid[row][x] = strokes.level
        else:
            upper, lower = strokes.fall if row > before else strokes.rise
            grid[min(before, row)][x], grid[max(before, row)][x] = upper, lower
    drawn = [[c.scale for c, row in zip(columns, rows, strict=True) if row == y] for y in range(count)]
    return Curve(
        tuple(scale(max(drawn[y], default=math.ldexp(1.0, top - y * per_row))) for y in range(count)),
        tuple("".join(line) for line in grid),
        "".join(strokes.skip if c.skipped else " " for c in columns),
        steps[0].step,
        steps[-1].step,
    )


def _column(steps: Sequence[StepRecord]) -> Column:
    ceilings = [s.ceiling for s in steps]
    known = [c for c in ceilings if c is not None]
    return Column(
        steps[0].scale,
        _exponent(steps[0].scale),
        min(known) if len(known) == len(ceilings) else None,
        any(s.skipped for s in steps),
    )


def _exponent(value: float) -> int:
    return math.frexp(value)[1] - 1 if value > 0 else _LOWEST

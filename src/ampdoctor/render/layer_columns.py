"""The columns of the layers table, for every format: what each is called, what is in it, what sorts it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ampdoctor.diagnose.report import LayerRow, Report
from ampdoctor.diagnose.wording import number, percent

WORST = 8
"""Rows that are shown where not all are asked for."""
_FULL = 16.0
"""Bits of headroom at which a bar is full: FP16 has as many between 1 and its end."""


@dataclass(frozen=True)
class Column:
    """One column, after the module's name."""

    key: str
    head: str
    """Where there is little room."""
    title: str
    """Where there is more."""
    cell: Callable[[LayerRow], str]
    sort: Callable[[LayerRow], float | None]
    """What the rows are sorted by; None stays last."""
    width: int
    """Characters, in a terminal."""
    meaning: str = ""
    """For the table's legend; '' where the title says it."""
    bar: Callable[[LayerRow], float | None] | None = None
    """Percent of a bar that is filled, where a picture can be drawn; None: no bar in this row."""


def name_of(row: LayerRow) -> str:
    """The module's path."""
    return row.module or "(root)"


def shown_rows(report: Report, all_layers: bool) -> tuple[str, tuple[LayerRow, ...]]:
    """The table's heading, and the worst few rows, or all in the model's own order."""
    rows = report.layers
    if all_layers:
        return f"Layers ({len(rows)})", tuple(sorted(rows, key=lambda row: row.position))
    if len(rows) > WORST:
        return f"Layers (worst {WORST} of {len(rows)})", rows[:WORST]
    return "Layers", rows


def _absmax(row: LayerRow) -> str:
    """Largest finite magnitude of the forward; ``inf`` or ``nan`` where one is born here."""
    if row.born:
        return row.born
    if row.forward is None:
        return "-"
    return "nan" if row.forward.nan else number(row.forward.absmax) if row.forward.absmax is not None else "-"


def _absmax_sort(row: LayerRow) -> float | None:
    if row.born or (row.forward is not None and row.forward.nan):
        return math.inf
    return row.forward.absmax if row.forward is not None else None


def _headroom(row: LayerRow) -> str:
    """``8.8 bits``, ``none`` for an overflow, ``-`` where it does not exist."""
    if row.born == "inf":
        return "none"
    if row.forward is None or row.forward.headroom_bits is None:
        return "-"
    return f"{row.forward.headroom_bits:.1f} bits"


def _headroom_sort(row: LayerRow) -> float | None:
    if row.born == "inf":
        return -math.inf
    return row.forward.headroom_bits if row.forward is not None else None


def left(headroom_bits: float | None) -> float | None:
    """Percent of a headroom bar that is filled: empty at the end of the range, full 16 bits below it."""
    return None if headroom_bits is None else 100.0 * min(max(headroom_bits / _FULL, 0.0), 1.0)


TERMS = "headroom: bits to the format's end; underflow: what its own ops round to 0"
"""The columns' words that a newcomer asks about, in one line of a terminal."""


def _gradient(row: LayerRow) -> str:
    """Largest magnitude of the unscaled gradient; ``nan`` or ``inf`` where it holds one."""
    if row.gradient is None:
        return "-"
    if row.gradient.nan or row.gradient.inf:
        return "nan" if row.gradient.nan else "inf"
    return number(row.gradient.absmax) if row.gradient.absmax is not None else "-"


def _gradient_sort(row: LayerRow) -> float | None:
    if row.gradient is None:
        return None
    return math.inf if row.gradient.nan or row.gradient.inf else row.gradient.absmax


def _underflow(row: LayerRow) -> str:
    """The share that rounding zeroed."""
    if row.gradient is None or row.gradient.underflow_fraction is None:
        return "-"
    return percent(row.gradient.underflow_fraction)


COLUMNS = (
    Column("calls", "calls", "Calls", lambda row: str(row.calls), lambda row: float(row.calls), 5),
    Column(
        "absmax",
        "absmax",
        "Largest",
        _absmax,
        _absmax_sort,
        7,
        "largest value that the module's own ops made in forward",
    ),
    Column(
        "headroom",
        "headroom",
        "Headroom",
        _headroom,
        _headroom_sort,
        9,
        "bits to the end of the range",
        lambda row: left(_headroom_sort(row)),
    ),
    Column(
        "gradient",
        "grad max",
        "Gradient",
        _gradient,
        _gradient_sort,
        8,
        "the same in backward, divided by the loss scale",
    ),
    Column(
        "underflow",
        "underflow",
        "Underflow",
        _underflow,
        lambda row: row.gradient.underflow_fraction if row.gradient is not None else None,
        9,
        "gradient elements that its own ops round to zero, whether a parameter loses by it or not",
    ),
)

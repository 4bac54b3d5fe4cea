"""The per-layer table: the worst few, or all of them in the model's own order."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from ampdoctor.diagnose.report import LayerRow, Report
from ampdoctor.diagnose.wording import number, percent
from ampdoctor.render.options import Options
from ampdoctor.render.words import shortened, words

_WORST = 8
_COLUMNS = ("calls", "absmax", "headroom", "grad max", "underflow")
_NUMBERS_WIDTH = 48
"""Columns that the numbers take, gaps included; the name has the rest."""


def layers_section(report: Report, options: Options) -> Table:
    """Heading and rows as one table, so that the numbers line up."""
    rows = list(report.layers)
    if options.all_layers:
        rows.sort(key=lambda row: row.position)
        heading = f"Layers ({len(rows)})"
    else:
        heading = (
            f"Layers (worst {min(_WORST, len(rows))} of {len(rows)})" if len(rows) > _WORST else "Layers"
        )
        rows = rows[:_WORST]
    table = Table.grid(padding=(0, 2, 0, 0))
    name_width = max(options.width - _NUMBERS_WIDTH - 2, 16)
    table.add_column(width=name_width, no_wrap=True, overflow="crop")
    for _ in _COLUMNS:
        table.add_column(justify="right", no_wrap=True, overflow="crop")
    table.add_row(Text(heading, "bold"), *(Text(column, "dim") for column in _COLUMNS))
    for row in rows:
        cells = (
            str(row.calls),
            absmax_cell(row),
            headroom_cell(row),
            gradient_cell(row),
            underflow_cell(row),
        )
        name = f"{row.module or '(root)'} {row.type}"
        style = "red" if row.born else ""
        table.add_row(
            *(words(cell, style=style) for cell in (" " + shortened(name, name_width - 1, options), *cells))
        )
    return table


def absmax_cell(row: LayerRow) -> str:
    """Largest finite magnitude of the forward; ``inf`` or ``nan`` where one is born here."""
    if row.born:
        return row.born
    if row.forward is None:
        return "-"
    return "nan" if row.forward.nan else number(row.forward.absmax) if row.forward.absmax is not None else "-"


def headroom_cell(row: LayerRow) -> str:
    """``8.8 bits``, ``none`` for an overflow, ``-`` where it does not exist."""
    if row.born == "inf":
        return "none"
    if row.forward is None or row.forward.headroom_bits is None:
        return "-"
    return f"{row.forward.headroom_bits:.1f} bits"


def gradient_cell(row: LayerRow) -> str:
    """Largest magnitude of the unscaled gradient; ``nan`` or ``inf`` where it holds one."""
    if row.gradient is None:
        return "-"
    if row.gradient.nan or row.gradient.inf:
        return "nan" if row.gradient.nan else "inf"
    return number(row.gradient.absmax) if row.gradient.absmax is not None else "-"


def underflow_cell(row: LayerRow) -> str:
    """The share that rounding zeroed."""
    if row.gradient is None or row.gradient.underflow_fraction is None:
        return "-"
    return percent(row.gradient.underflow_fraction)

"""The per-layer table in the terminal: the worst few, or all of them in the model's own order."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from ampdoctor.diagnose.report import Report
from ampdoctor.render.labels import labels
from ampdoctor.render.layer_columns import COLUMNS, name_of, shown_rows
from ampdoctor.render.options import Options
from ampdoctor.render.words import words

_GAP = 2


def layers_section(report: Report, options: Options) -> Table:
    """Heading and rows as one table, so that the numbers line up."""
    heading, rows = shown_rows(report, options.all_layers)
    table = Table.grid(padding=(0, _GAP, 0, 0))
    numbers = sum(column.width + _GAP for column in COLUMNS)
    name_width = max(options.width - numbers - 2, 16)
    table.add_column(width=name_width, no_wrap=True, overflow="crop")
    for _ in COLUMNS:
        table.add_column(justify="right", no_wrap=True, overflow="crop")
    table.add_row(Text(heading, "bold"), *(Text(column.head, "dim") for column in COLUMNS))
    dots = "…" if options.unicode else "..."
    names = labels([name_of(row) for row in rows], [row.type for row in rows], name_width - 1, dots)
    for row, name in zip(rows, names, strict=True):
        cells = (f" {name}", *(column.cell(row) for column in COLUMNS))
        table.add_row(*(words(cell, style="red" if row.born else "") for cell in cells))
    return table

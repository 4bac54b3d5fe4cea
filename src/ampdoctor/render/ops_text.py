"""The ops and their dtypes, for a terminal and for a page: which rows, in what words."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Group
from rich.table import Table
from rich.text import Text

from ampdoctor.diagnose.report import OpRow, Report
from ampdoctor.diagnose.wording import count_words, place, short_op
from ampdoctor.render.labels import labels
from ampdoctor.render.options import Options
from ampdoctor.render.words import words

_OP_WIDTH = 30
_NUMBERS = 8 + 5 + 9 + 3 * 2
"""Columns of dtype, calls and what is moved, with the gaps before them."""


def op_name(row: OpRow) -> str:
    """``softmax``; ``cast by autocast`` for one."""
    return "cast by autocast" if row.by_autocast else short_op(row.op)


def moved(count: int) -> str:
    """``1.5 MB``; '' for nothing."""
    if not count:
        return ""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def casts_sentence(rows: Sequence[OpRow]) -> str:
    """What autocast's casts cost in all: ``Autocast puts in 12 casts, which read and write 1.5 MB.``"""
    casts = [row for row in rows if row.by_autocast]
    if not casts:
        return "Autocast puts no cast in."
    count = count_words(sum(row.calls for row in casts), "cast")
    return f"Autocast puts in {count}, which read and write {moved(sum(row.bytes_moved for row in casts))}."


def ops_section(report: Report, options: Options) -> Group:
    """A block per module and phase: op, dtype of its result, calls, bytes that a cast of autocast moves."""
    dots = "…" if options.unicode else "..."
    width = options.width - _NUMBERS - _OP_WIDTH - 2
    modules = list(dict.fromkeys(row.module for row in report.ops))
    names = dict(
        zip(modules, labels([place(m) for m in modules], [""] * len(modules), width, dots), strict=True)
    )
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=width + 1, no_wrap=True, overflow="crop")
    table.add_column(width=_OP_WIDTH - 2, no_wrap=True, overflow="ellipsis")
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    heads = ("op", "dtype", "calls", "moved")
    for phase in ("forward", "backward"):
        rows = [row for row in report.ops if row.phase == phase]
        if not rows:
            continue
        table.add_row(Text(f"Ops, {phase}", "bold"), *(Text(head, "dim") for head in heads))
        for module, group in groupby(rows, key=lambda row: row.module):
            for n, row in enumerate(group):
                style = "dim" if row.by_autocast else ""
                cells = (op_name(row), row.dtype, str(row.calls), moved(row.bytes_moved))
                name = words(f" {names[module]}" if n == 0 else "")
                table.add_row(name, *(words(cell, style=style) for cell in cells))
    return Group(table, words(casts_sentence(report.ops)))

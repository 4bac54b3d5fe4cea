"""What every loss scale from 2^0 to 2^32 would do, for a terminal: what becomes zero, overflows, works."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ampdoctor.diagnose.wording import format_name, percent, scale, two_to
from ampdoctor.facts.zones import OVERFLOW, ZERO
from ampdoctor.render.gradients.bars import bar_rows, sparkline
from ampdoctor.render.gradients.chart import LABEL_WIDTH, STYLES
from ampdoctor.render.gradients.page import Page, exponent_of_power
from ampdoctor.render.gradients.text import command_lines, next_rows, verdict
from ampdoctor.render.gradients.words import notes, things
from ampdoctor.render.loss_scale_text import loss_scale_section
from ampdoctor.render.options import Options
from ampdoctor.render.terminal import as_text
from ampdoctor.render.text import header, labelled
from ampdoctor.render.words import words
from ampdoctor.scales.powers_of_two import HIGHEST, LOWEST, ScalePoint
from ampdoctor.scales.runs import ScaleSeen

_ROWS = 7
_TICK_EVERY = 4
"""Scales between two labels: 2^0, 2^4, ..."""


def render_sweep(page: Page, options: Options) -> str:
    """The sweep as lines of at most ``options.width`` columns, with a newline at its end."""
    return as_text(sweep_document(page, options), options)


def sweep_document(page: Page, options: Options) -> RenderableType:
    """The sweep as something rich can print or export."""
    fmt = format_name(page.view.fmt.name)
    title = f"{things(page).capitalize()} that become zero in {fmt}, by loss scale"
    parts: list[RenderableType] = [
        header(page.report.environment, options),
        Text(""),
        verdict(page),
        Text(""),
    ]
    parts += [words((title, "bold"))]
    parts += [*_chart(page, options), Text("")]
    if page.reading.runs:
        parts += [_runs(page, options), Text("")]
    parts += [words(note, style="dim") for note in notes(page)]
    rows = [("Loss scale", loss_scale_section(page.report))] if page.reading.searched else []
    parts += [Text(""), labelled([*rows, *next_rows(page)]), *command_lines(page, options)]
    return Padding(Group(*parts), (0, 0, 0, 1))


def _chart(page: Page, options: Options) -> Iterator[Text]:
    points = page.reading.points
    each = 2 if LABEL_WIDTH + 2 * len(points) + 2 <= options.width else 1
    unicode = options.unicode
    vertical, tick, corner, dash = "│┤└─" if unicode else "|++-"
    most = max(p.underflow_fraction for p in points)
    lines = bar_rows([p.underflow_fraction for p in points], _ROWS if most else 1, unicode)
    for i, line in enumerate(lines):
        label, end = (percent(most), tick) if i == 0 else ("", vertical)
        yield Text(f"{label:>{LABEL_WIDTH - 2}} {end}").append(_wide(line, each), STYLES[ZERO])
    yield Text(f"{'0':>{LABEL_WIDTH - 2}} {corner}{dash * each * len(points)}")
    ticks = "".join(
        two_to(k).ljust(_TICK_EVERY * each) for k in range(LOWEST, HIGHEST + 1, _TICK_EVERY)
    ).rstrip()
    yield Text(" " * LABEL_WIDTH + ticks)
    tensors = len(page.reading.counted)
    overflow = _wide(sparkline([p.overflowing / tensors for p in points], unicode), each)
    yield Text(f"{'overflow':<{LABEL_WIDTH}}").append(overflow.rstrip() or "none", STYLES[OVERFLOW])
    yield Text(f"{'works':<{LABEL_WIDTH}}").append(_window(page, each, unicode), "green")
    yield Text(" " * LABEL_WIDTH).append(_marks(page, each, unicode), "bold")


def _wide(line: str, each: int) -> str:
    return "".join(c * each for c in line)


def _window(page: Page, each: int, unicode: bool) -> str:
    """The window as a line from end to end, in the columns of its scales."""
    window = page.reading.window
    if window is None:
        return "nowhere"
    low, high = window.low - LOWEST, window.high - LOWEST
    start, end, line = ("├", "┤", "─") if unicode else ("|", "|", "-")
    width = (high - low + 1) * each
    drawn = "|" if width == 1 else start + line * (width - 2) + end
    return " " * low * each + drawn


def _marks(page: Page, each: int, unicode: bool) -> str:
    """Arrows below the scale shown and the one to use."""
    arrow = "▲" if unicode else "^"
    marks: dict[int, str] = {}
    if page.reading.recommended is not None:
        marks[page.reading.recommended] = "use"
    shown = page.view.exponent
    marks[shown] = "shown, use" if shown == page.reading.recommended else "shown"
    line = ""
    for exponent in sorted(k for k in marks if LOWEST <= k <= HIGHEST):
        start = max((exponent - LOWEST) * each, len(line) + 1 if line else 0)
        line = line.ljust(start) + f"{arrow} {marks[exponent]}"
    return line


def _runs(page: Page, options: Options) -> Table:
    """The scales that were run: what was predicted, and what was seen."""
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_row(Text("Run at", "bold"), Text("becomes zero", "dim"), Text("predicted", "dim"))
    for run in page.reading.runs:
        table.add_row(" " + _scale_words(run.loss_scale), _seen(run), _predicted(page, run.loss_scale))
    return table


def _scale_words(loss_scale: float) -> str:
    exponent = exponent_of_power(loss_scale)
    return two_to(exponent) if loss_scale == 2.0**exponent else scale(loss_scale)


def _seen(run: ScaleSeen) -> str:
    return percent(run.underflow_fraction) if run.finite else "overflows"


def _predicted(page: Page, loss_scale: float) -> str:
    exponent = exponent_of_power(loss_scale)
    point: ScalePoint | None = page.reading.point(exponent) if loss_scale == 2.0**exponent else None
    if point is None:
        return "-"
    if point.overflowing:
        return "overflows"
    return percent(point.underflow_fraction if point.predicted is None else point.predicted)

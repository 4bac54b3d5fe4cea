"""The histogram as a chart of characters: a bar per exponent, zones set apart, their edges named."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from rich.text import Text

from ampdoctor.diagnose.wording import number, percent, two_to
from ampdoctor.facts.floats import FloatFormat
from ampdoctor.facts.histogram import exponent_of
from ampdoctor.facts.zones import NORMAL, OVERFLOW, SUBNORMAL, ZERO
from ampdoctor.render.gradients.axis import Axis, beyond
from ampdoctor.render.gradients.bars import bar_rows, sparkline
from ampdoctor.render.options import Options
from ampdoctor.scales.gradient_view import Gradients

STYLES = {ZERO: "red", SUBNORMAL: "yellow", NORMAL: "green", OVERFLOW: "red"}
LABEL_WIDTH = 9
"""Columns that the share at the left of a chart takes, its tick included."""
_NAMES = {
    ZERO: ("becomes zero", "zero", "0"),
    SUBNORMAL: ("subnormal", "subn.", "sub", "s"),
    NORMAL: ("normal", "norm", "n"),
    OVERFLOW: ("overflow", "over", "inf", "!"),
}
_ROWS = 8


def chart(gradients: Gradients, axis: Axis, options: Options) -> list[Text]:
    """The lines of the chart: bars, base line, edges and names of the zones."""
    counts = axis.counts(gradients.histogram)
    lines = bar_rows([float(n) for n in counts], _ROWS, options.unicode)
    highest = percent(gradients.share(max(counts, default=0)))
    drawn = []
    for i, line in enumerate(lines):
        label = highest if i == 0 else ""
        tick = ("┤" if options.unicode else "+") if i == 0 else ("│" if options.unicode else "|")
        drawn.append(Text(f"{label:>{LABEL_WIDTH - 2}} {tick}").append(in_zones(axis, line, options)))
    corner, dash, joint = "└─┴" if options.unicode else "+-+"
    base = joint.join(dash * width for _, width in axis.spans())
    drawn.append(Text(f"{'0':>{LABEL_WIDTH - 2}} {corner}{base}"))
    margin = " " * LABEL_WIDTH
    drawn.append(Text(margin + _edges(axis)))
    drawn.append(Text(margin).append(zone_names(axis)))
    note = _beyond_words(axis, gradients)
    if note:
        drawn.append(Text(margin + note, "dim"))
    return drawn


def spark(gradients: Gradients, axis: Axis, options: Options) -> Text:
    """One row of bars on an axis of its own scale."""
    return in_zones(axis, sparkline(axis.heights(gradients.histogram), options.unicode), options)


def in_zones(axis: Axis, line: str, options: Options) -> Text:
    """A row of bars in the colours of the zones, with a line between two."""
    between = "│" if options.unicode else "|"
    text, start = Text(), 0
    for i, (zone, width) in enumerate(axis.spans()):
        if i:
            text.append(between, "dim")
        text.append(line[start : start + width], STYLES[zone])
        start += width
    return text


def zone_names(axis: Axis) -> Text:
    """The zones' names, each in the middle of its columns and as long as fits."""
    text = Text()
    for i, (zone, width) in enumerate(axis.spans()):
        name = next((n for n in _NAMES[zone] if len(n) <= width), "")
        text.append(" " if i else "").append(f"{name:^{width}}", STYLES[zone])
    return text


def _edges(axis: Axis) -> str:
    """The magnitudes at which a zone ends and the next begins, below the line between them."""
    line, at = "", 0
    for (_, width), (zone, _) in pairwise(axis.spans()):
        at += width + 1
        label = edge_label(axis.fmt, zone)
        start = max(at - 1 - len(label) // 2, len(line) + 1 if line else 0)
        line = line.ljust(start) + label
    return line


def edge_label(fmt: FloatFormat, zone: str) -> str:
    """Where a zone begins: ``2^-25``, ``2^-14``, ``65,520``."""
    if zone == OVERFLOW:
        edge = round(fmt.overflow_at) if fmt.overflow_at < 1e7 else fmt.overflow_at
        return number(edge) if edge < 1e7 else two_to(exponent_of(edge) + 1)
    return two_to(exponent_of(fmt.flush_at if zone == SUBNORMAL else fmt.min_normal))


def _beyond_words(axis: Axis, gradients: Gradients) -> str:
    """What the outermost columns took in, and a range that none of the drawing shows an edge of."""
    low, high = beyond(axis, gradients.histogram)
    parts = []
    if low is not None:
        parts.append(f"leftmost: everything down to {two_to(low)}")
    if high is not None:
        parts.append(f"rightmost: everything up to {two_to(high + 1)}")
    if len(axis.spans()) == 1:
        first, last = axis.columns[0], axis.columns[-1]
        parts.append(f"{two_to(first.low)} .. {two_to(last.high + 1)}, all {first.zone}")
    return "; ".join(parts)


def widest(lines: Sequence[Text]) -> int:
    """Columns of the longest line."""
    return max((line.cell_len for line in lines), default=0)

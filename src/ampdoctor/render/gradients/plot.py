"""The histogram, or the sweep, as a picture. The only file that needs matplotlib (the extra ``plots``)."""

from __future__ import annotations

import io
import textwrap
from typing import TYPE_CHECKING, Any

from ampdoctor.diagnose.wording import format_name, percent
from ampdoctor.facts.zones import NORMAL, OVERFLOW, SUBNORMAL, ZERO
from ampdoctor.render.gradients.axis import Axis, axis_for
from ampdoctor.render.gradients.chart import edge_label
from ampdoctor.render.gradients.page import Page, exponent_of_power
from ampdoctor.render.gradients.words import headline, layer_labels, shown_scale, things
from ampdoctor.scales.powers_of_two import HIGHEST, LOWEST, is_power_of_two

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLORS = {ZERO: "#c0392b", SUBNORMAL: "#d68910", NORMAL: "#1e8449", OVERFLOW: "#7d3c98"}
_TINTS = {ZERO: "#fbeceb", SUBNORMAL: "#fdf4e3", NORMAL: "#edf7f0", OVERFLOW: "#f4ecf7"}
_NAMES = {ZERO: "becomes zero", SUBNORMAL: "subnormal", NORMAL: "normal", OVERFLOW: "overflow"}
_INK, _GREY = "#222222", "#777777"
_COLUMNS = 72
"""Exponents that fit side by side."""
_LETTERS = 115
"""Of the headline, on one line."""
_LABEL_LETTERS = 34
_LAYER_HEIGHT, _CHART_HEIGHT, _WIDTH, _DPI = 0.3, 3.4, 9.0, 144


def picture(page: Page, kind: str) -> bytes:
    """The picture as ``png`` or ``svg``."""
    import matplotlib
    from matplotlib.figure import Figure

    # Text stays text in an SVG; the fixed salt and the missing date give equal pages equal files.
    settings: Any = {
        "svg.fonttype": "none", "svg.hashsalt": "ampdoctor", "font.size": 9,
        "text.color": _INK, "axes.labelcolor": _INK, "xtick.color": _INK, "ytick.color": _INK,
    }  # fmt: skip
    with matplotlib.rc_context(settings):
        layers = page.view.layers[: page.top] if len(page.view.layers) > 1 and not page.sweep else ()
        height = _CHART_HEIGHT + 1.0 + (0.4 + _LAYER_HEIGHT * len(layers) if layers else 0)
        figure = Figure(figsize=(_WIDTH, height), dpi=_DPI, facecolor="white", layout="constrained")
        figure.suptitle(_heading(page), x=0.01, ha="left", fontsize=10)
        if page.sweep:
            _sweep(figure, page)
        elif layers:
            ratios = [_CHART_HEIGHT, 0.4 + _LAYER_HEIGHT * len(layers)]
            above, below = figure.subplots(2, 1, height_ratios=ratios)
            _histogram(above, page)
            _layers(below, page)
        else:
            _histogram(figure.add_subplot(), page)
        out = io.BytesIO()
        figure.savefig(out, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return out.getvalue()


def _heading(page: Page) -> str:
    head, rest = headline(page)
    text = "\n".join(textwrap.wrap(f"{head} {rest}", _LETTERS))
    # a dollar sign begins a formula
    return f"{page.report.environment.title}\n{text}".replace("$", r"\$")


def _histogram(axes: Axes, page: Page) -> None:
    whole = page.view.whole
    axis = axis_for(whole.histogram, page.view.fmt, _COLUMNS)
    heights = [100 * whole.share(n) for n in axis.counts(whole.histogram)]
    axes.bar(
        [c.low for c in axis.columns],
        heights,
        width=[c.high - c.low + 1 for c in axis.columns],
        align="edge",
        color=[_COLORS[c.zone] for c in axis.columns],
        edgecolor="white",
        linewidth=0.4,
    )
    axes.set_ylim(0, 1.22 * max(*heights, 0.01))
    counts = {ZERO: whole.lost, SUBNORMAL: whole.subnormal, NORMAL: whole.normal, OVERFLOW: whole.overflowed}
    spans = _zones(axes, axis)
    whole_width = spans[-1][2] - spans[0][1]
    for zone, left, right in spans:
        # a name is about an eighth of the picture wide: in a narrower zone it stands upright
        narrow = (right - left) / whole_width < 0.14
        label = f"{_NAMES[zone]}{'  ' if narrow else chr(10)}{percent(whole.share(counts[zone]))}"
        axes.text(
            (left + right) / 2, 0.97, label, transform=axes.get_xaxis_transform(), ha="center", va="top",
            color=_COLORS[zone], fontsize=9, fontweight="bold", rotation=90 if narrow else 0,
            bbox={"facecolor": _TINTS[zone], "edgecolor": "none", "alpha": 0.85, "pad": 1},
        )  # fmt: skip
    axes.set_ylabel(f"% of {things(page)}")
    axes.set_xlabel(f"magnitude at loss scale {shown_scale(page)}, before rounding")
    _exponents(axes, axis)


def _layers(axes: Axes, page: Page) -> None:
    """One row per layer: the darker, the larger the part of its elements."""
    import matplotlib.colors

    view = page.view
    axis = axis_for(view.whole.histogram, view.fmt, _COLUMNS)
    shown = view.layers[: page.top]
    for row, layer in enumerate(shown):
        counts = axis.counts(layer.histogram)
        most = max(*counts, 1)
        for column, n in zip(axis.columns, counts, strict=True):
            if n:
                # a tenth of the colour at least: a bin that holds anything can be seen
                strength = max(0.1, n / most)
                color = matplotlib.colors.to_rgba(_COLORS[column.zone], strength)
                axes.barh(row, column.high - column.low + 1, 0.84, left=column.low, color=color)
        overflow = f", {layer.overflowed:,} overflow" if layer.overflowed else ""
        axes.text(
            1.01, row, f"{percent(layer.underflow_fraction)} zero{overflow}",
            transform=axes.get_yaxis_transform(), va="center", fontsize=8,
        )  # fmt: skip
    _zones(axes, axis)
    axes.set_yticks(range(len(shown)), layer_labels(page, _LABEL_LETTERS, unicode=True), fontsize=8)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    of = f" ({len(shown)} of {len(view.layers)})" if len(shown) < len(view.layers) else ""
    axes.set_title(f"Worst layers{of}" if of else "Layers", loc="left", fontsize=9)
    _exponents(axes, axis)


def _zones(axes: Axes, axis: Axis) -> list[tuple[str, float, float]]:
    """(zone, left, right), tinted, with a line and its magnitude where one ends and the next begins."""
    spans: list[tuple[str, float, float]] = []
    for c in axis.columns:
        if spans and spans[-1][0] == c.zone:
            spans[-1] = (c.zone, spans[-1][1], c.high + 1)
        else:
            spans.append((c.zone, c.low, c.high + 1))
    for i, (zone, left, right) in enumerate(spans):
        axes.axvspan(left, right, color=_TINTS[zone], zorder=-2, linewidth=0)
        if i:
            axes.axvline(left, color=_GREY, linewidth=0.8, linestyle="--", zorder=-1)
    axes.set_xlim(axis.columns[0].low, axis.columns[-1].high + 1)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return spans


def _exponents(axes: Axes, axis: Axis) -> None:
    """Ticks at the zones' edges, and between them where there is room."""
    edges = {}
    previous = axis.columns[0].zone
    for c in axis.columns:
        if c.zone != previous:
            edges[c.low] = edge_label(axis.fmt, c.zone)
            previous = c.zone
    low, high = axis.columns[0].low, axis.columns[-1].high + 1
    every = 4 if high - low <= 80 else 8
    others = {
        k: f"$2^{{{k}}}$"
        for k in range(low + -low % every, high, every)
        if all(abs(k - edge) >= every for edge in edges)
    }
    labels = {k: _formula(label) for k, label in edges.items()} | others
    axes.set_xticks(list(labels), list(labels.values()))


def _formula(label: str) -> str:
    """``2^-25`` as a formula; a plain number as it is."""
    return f"$2^{{{label[2:]}}}$" if label.startswith("2^") else label


def _sweep(figure: Figure, page: Page) -> None:
    axes = figure.add_subplot()
    view, window = page.view, page.reading.window
    scales = [p.exponent for p in page.reading.points]
    if window is not None:
        axes.axvspan(window.low - 0.5, window.high + 0.5, color=_TINTS[NORMAL], zorder=-2, linewidth=0)
        axes.text(
            (window.low + window.high) / 2, 1.02, f"works: $2^{{{window.low}}}$ .. $2^{{{window.high}}}$",
            transform=axes.get_xaxis_transform(), ha="center", color=_COLORS[NORMAL], fontweight="bold",
        )  # fmt: skip
    zeroed = [100 * p.underflow_fraction for p in page.reading.points]
    overflow = [100 * p.overflowing / len(page.reading.counted) for p in page.reading.points]
    fmt = format_name(view.fmt.name)
    curves = (
        (zeroed, _COLORS[ZERO], f"{things(page)} that become zero in {fmt}"),
        (overflow, _COLORS[OVERFLOW], "tensors in which an element overflows"),
    )
    for values, color, label in curves:
        axes.fill_between(scales, values, color=color, alpha=0.13, linewidth=0)
        axes.plot(scales, values, color=color, marker=".", label=label)
    runs = {exponent_of_power(r.loss_scale): r for r in page.reading.runs if is_power_of_two(r.loss_scale)}
    counted = {k: 100 * (r.underflow_fraction or 0.0) for k, r in runs.items() if r.finite and k in scales}
    failed = {k: overflow[k - LOWEST] for k, r in runs.items() if not r.finite and k in scales}
    for seen, marker, color, label in (
        (counted, "o", "white", "counted by running that scale"),
        (failed, "X", _INK, "ran, and overflowed"),
    ):
        if seen:
            axes.plot(
                list(seen), list(seen.values()), marker, color=color, markeredgecolor=_INK, markersize=7,
                zorder=5, clip_on=False, label=label,
            )  # fmt: skip
    _scale_marks(axes, page)
    axes.set_xlim(LOWEST - 0.5, HIGHEST + 0.5)
    axes.set_ylim(0, 104)
    axes.set_xticks(range(LOWEST, HIGHEST + 1, 4), [f"$2^{{{k}}}$" for k in range(LOWEST, HIGHEST + 1, 4)])
    axes.set_xlabel("loss scale")
    axes.set_ylabel("%")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)


def _scale_marks(axes: Axes, page: Page) -> None:
    """Lines at the scale shown and at the one to use."""
    marks = {page.view.exponent: "shown"}
    better = page.reading.recommended
    if better is not None:
        marks[better] = "shown, use" if better == page.view.exponent else "use"
    for exponent, label in marks.items():
        if LOWEST <= exponent <= HIGHEST:
            axes.axvline(exponent, color=_INK, linewidth=0.9, linestyle=":")
            axes.text(exponent + 0.25, 50, label, rotation=90, va="center", fontsize=8)

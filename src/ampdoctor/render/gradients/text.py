"""Where the gradients lie, for a terminal: headline, histogram, zones, worst layers, what to do next."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ampdoctor.diagnose.wording import count_words, percent
from ampdoctor.facts.zones import NORMAL, OVERFLOW, SUBNORMAL, ZERO
from ampdoctor.render.gradients.axis import axis_for
from ampdoctor.render.gradients.chart import LABEL_WIDTH, STYLES, chart, edge_label, spark, zone_names
from ampdoctor.render.gradients.page import Page
from ampdoctor.render.gradients.words import (
    FITS,
    advice,
    commands,
    headline,
    judgement,
    largest,
    layer_labels,
    most_lost,
    notes,
    shown_scale,
    tensor_words,
    things,
)
from ampdoctor.render.options import Options
from ampdoctor.render.terminal import as_text
from ampdoctor.render.text import header, labelled
from ampdoctor.render.words import source_path, words
from ampdoctor.scales.powers_of_two import GradientTensor
from ampdoctor.scales.selection import PARAMETERS

_MARGIN = 1
_SPARK_WIDTH = 32
_LAYER_NUMBERS = (7, 6)
"""Columns of a layer's shares: what becomes zero, what overflows."""


def render(page: Page, options: Options) -> str:
    """The page as lines of at most ``options.width`` columns, with a newline at its end."""
    return as_text(document(page, options), options)


def document(page: Page, options: Options) -> RenderableType:
    """The page as something rich can print or export."""
    inner = options.width - 2 * _MARGIN
    axis = axis_for(page.view.whole.histogram, page.view.fmt, inner - LABEL_WIDTH)
    parts: list[RenderableType] = [
        header(page.report.environment, options),
        Text(""),
        verdict(page),
        Text(""),
    ]
    parts += [_title(page), *chart(page.view.whole, axis, options), Text(""), _zones(page), Text("")]
    parts += [words(note, style="dim") for note in notes(page)]
    if len(page.view.layers) > 1 and page.top:
        parts += [Text(""), _layers(page, options)]
    parts += [Text(""), labelled(list(closing_rows(page, options))), *command_lines(page, options)]
    return Padding(Group(*parts), (0, 0, 0, _MARGIN))


def verdict(page: Page) -> Text:
    """The headline."""
    head, rest = headline(page)
    return words((head, "bold green" if judgement(page) == FITS else "bold red"), " ", rest)


def _title(page: Page) -> Text:
    whole = page.view.whole
    name = things(page).replace(" elements", "s").capitalize()
    layers = f" of {', '.join(page.view.selection.layers)}" if page.view.selection.layers else ""
    sizes = f"{count_words(whole.nonzero, 'element')} of {count_words(whole.tensors, 'tensor')}"
    return words((f"{name}{layers} at loss scale {shown_scale(page)}", "bold"), f"   {sizes}")


def _zones(page: Page) -> Table:
    """Per zone: where it begins, its elements, their share."""
    whole, fmt = page.view.whole, page.view.fmt
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_column(width=LABEL_WIDTH - 1, no_wrap=True)
    names = {ZERO: "becomes zero", SUBNORMAL: "subnormal", NORMAL: "normal", OVERFLOW: "overflow"}
    for _ in names:
        table.add_column(justify="right", no_wrap=True)
    table.add_row("", *(Text(name, STYLES[zone]) for zone, name in names.items()))
    edges = ["0", *(edge_label(fmt, zone) for zone in (SUBNORMAL, NORMAL, OVERFLOW))]
    past = "inf" if fmt.has_infinity else "NaN or max"
    table.add_row(Text("kept as", "dim"), *(Text(t, "dim") for t in ("0", "fewer bits", "all bits", past)))
    table.add_row(Text("from", "dim"), *(Text(edge, "dim") for edge in edges))
    counts = (whole.lost, whole.subnormal, whole.normal, whole.overflowed)
    at_least = "" if whole.overflow_is_exact else ">="
    signs = ("", "", "", at_least)
    table.add_row(Text("elements", "dim"), *(f"{sign}{n:,}" for sign, n in zip(signs, counts, strict=True)))
    table.add_row(Text("share", "dim"), *(percent(whole.share(n)) for n in counts))
    return table


def _layers(page: Page, options: Options) -> Table:
    """The worst layers, each with its own histogram in one row."""
    view = page.view
    axis = axis_for(view.whole.histogram, view.fmt, _SPARK_WIDTH, outside=(3, 3), coarsest=2)
    shown = view.layers[: page.top]
    noun = "parameters" if view.selection.kind == PARAMETERS else "layers"
    of = f" of {len(view.layers)}" if len(shown) < len(view.layers) else ""
    heading = f"Worst {noun} ({len(shown)}{of})" if of else noun.capitalize()
    table = Table.grid(padding=(0, 2, 0, 0))
    taken = axis.width + sum(_LAYER_NUMBERS) + 3 * 2
    name_width = options.width - 2 * _MARGIN - taken
    table.add_column(width=name_width, no_wrap=True, overflow="crop")
    table.add_column(width=axis.width, no_wrap=True)
    for width in _LAYER_NUMBERS:
        table.add_column(width=width, justify="right", no_wrap=True)
    table.add_row(Text(heading, "bold"), zone_names(axis), Text("zero", "dim"), Text("over", "dim"))
    for layer, label in zip(shown, layer_labels(page, name_width - 1, options.unicode), strict=True):
        table.add_row(
            words(" " + label),
            spark(layer, axis, options) if layer.histogram.nonzero else Text("only zeros arrive here", "dim"),
            percent(layer.underflow_fraction),
            f"{layer.overflowed:,}" if layer.overflowed < 100_000 else percent(layer.share(layer.overflowed)),
        )
    return table


def closing_rows(page: Page, options: Options) -> Iterator[tuple[str, RenderableType]]:
    """Where most is lost, what is largest, and what to do."""
    lost = most_lost(page)
    if lost is not None:
        yield from _tensor_rows("Most lost", *lost, page, options)
    yield from _tensor_rows("Largest", *largest(page), page, options)
    yield from next_rows(page)


def next_rows(page: Page) -> Iterator[tuple[str, RenderableType]]:
    """What to do."""
    for i, sentence in enumerate(advice(page)):
        yield "Next" if i == 0 else "", words(sentence)


def command_lines(page: Page, options: Options) -> Iterator[Text]:
    """Commands to copy, from the margin on: those are long."""
    for command, what in commands(page):
        fits = len(command) + len(what) + 6 <= options.width - 2 * _MARGIN
        yield words(("  " + command, "bold"), (f"  # {what}" if fits else "", "dim"))


def _tensor_rows(
    label: str, tensor: GradientTensor, what: str, page: Page, options: Options
) -> Iterator[tuple[str, RenderableType]]:
    name, op = tensor_words(tensor, page)
    yield label, words((name, "bold"), f"   {op}   {what}")
    if tensor.source is not None:
        line = words((source_path(tensor.source, options), "cyan"), "   ", tensor.source.text)
        line.no_wrap, line.overflow = True, "ellipsis" if options.unicode else "crop"
        yield "", line

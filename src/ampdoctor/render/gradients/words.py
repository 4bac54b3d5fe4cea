"""A drawing of gradients in words: the headline, where most is lost, what was read, what to do next."""

from __future__ import annotations

from collections.abc import Iterator

from ampdoctor.diagnose.wording import (
    count_words,
    format_name,
    number,
    percent,
    place,
    scale,
    short_op,
    two_to,
)
from ampdoctor.render.gradients.page import Page
from ampdoctor.render.labels import labels
from ampdoctor.scales.powers_of_two import GradientTensor, ceiling_of
from ampdoctor.scales.reading import Window
from ampdoctor.scales.selection import ACTIVATIONS, PARAMETERS

FITS, UNDERFLOW, OVERFLOW = "FITS", "UNDERFLOW", "OVERFLOW"
_NOTICEABLE = 0.001
"""Shares are shown in tenths of a percent."""
_KINDS = {ACTIVATIONS: "activation gradient", PARAMETERS: "parameter gradient"}


def judgement(page: Page) -> str:
    """``FITS``, ``UNDERFLOW`` or ``OVERFLOW`` at the scale shown."""
    if page.view.whole.overflowing:
        return OVERFLOW
    too_much = page.view.whole.underflow_fraction >= page.underflow_limit
    return UNDERFLOW if too_much and not page.works else FITS


def headline(page: Page) -> tuple[str, str]:
    """The answer in one sentence, as its first words and the rest."""
    word = judgement(page)
    head = f"{word} at loss scale {shown_scale(page)}."
    match word:
        case "OVERFLOW":
            return head, f"{_overflow(page)}{_elsewhere(page)}."
        case "UNDERFLOW":
            return head, f"{_zeroed(page).capitalize()}{_elsewhere(page)}."
        case _:
            return head, f"Nothing overflows {_format(page)}, and {_zeroed(page)}{_harmless(page)}."


def shown_scale(page: Page) -> str:
    """The scale that the drawing is of, and the one asked for where that is another."""
    shown = scale(2.0**page.view.exponent)
    if page.wanted == 2.0**page.view.exponent:
        return shown
    return f"{shown} (the power of two next to {scale(page.wanted)})"


def things(page: Page) -> str:
    """``gradient elements``, or which of them."""
    return f"{_KINDS.get(page.view.selection.kind, 'gradient')} elements"


def _format(page: Page) -> str:
    return format_name(page.view.fmt.name)


def _overflow(page: Page) -> str:
    whole, fmt = page.view.whole, page.view.fmt
    at_least = "" if whole.overflow_is_exact else "At least "
    leave = "leaves" if whole.overflowed == 1 else "leave"
    lost = f", and {_zeroed(page)}" if whole.underflow_fraction >= page.underflow_limit else ""
    return (
        f"{at_least}{whole.overflowed:,} of {whole.nonzero:,} {things(page)} {leave} {_format(page)}'s range "
        f"({number(fmt.max)}), in {whole.overflowing} of {count_words(whole.tensors, 'tensor')}{lost}"
    )


def _zeroed(page: Page) -> str:
    """``at least 2.8 % of the gradient elements become zero``."""
    return f"{_bound(page)}{percent(page.view.whole.underflow_fraction)} of the {things(page)} become zero"


def _bound(page: Page) -> str:
    """On which side of the share given the true one lies, where it was not counted at this very scale."""
    view = page.view
    if view.whole.underflow_fraction < _NOTICEABLE:
        return ""
    if any(r.role == "reference" for r in view.recordings):
        return "about "
    return "at least " if view.whole.bound else ""


def _harmless(page: Page) -> str:
    """Says of a share above the limit why it is no underflow."""
    if page.is_spoiled:
        return _elsewhere(page)
    by_parameters = page.reading.searched and page.reading.by_parameters
    if not by_parameters or page.view.whole.underflow_fraction < page.underflow_limit:
        return ""
    return "; no parameter's gradient suffers from it"


def _elsewhere(page: Page) -> str:
    """What the recommended scale would do instead."""
    better = page.reading.recommended
    if page.is_spoiled:
        return "; but the fault is in forward"
    if better is None:
        return "" if page.window_of_all is not None else "; no loss scale keeps both ends"
    point = page.reading.point(better)
    if point is None or better == page.view.exponent:
        return ""
    share = f"{'at least ' if point.bound else ''}{percent(point.underflow_fraction)}"
    if judgement(page) == OVERFLOW:
        return f"; at {scale(2.0**better)} none does, and {share} become zero"
    return f"; at {scale(2.0**better)} it is {share}, and nothing overflows"


def notes(page: Page) -> Iterator[str]:
    """What is counted where, and what the drawing was read from."""
    view, whole = page.view, page.view.whole
    if page.sweep:
        yield from _source(page)
        if any(p.bound for p in page.reading.points):
            yield "At scales not run these are lower bounds: a zero made early spreads on its way back."
        return
    if whole.lost_before:
        yield (
            f"Of the zeros {whole.lost_before:,} came in as zero, where FP32 has a value; "
            f"{whole.flushed:,} are rounded to zero here."
        )
    apart = count_words(whole.structural_zeros, "zero")
    yield f"Kept apart: {apart} that FP32 has too, {view.infs:,} inf, {view.nans:,} NaN."
    yield from _source(page)


def _source(page: Page) -> Iterator[str]:
    view = page.view
    rounded = " and ".join(format_name(name) for name in view.recorded_as)
    if any(r.role == "reference" for r in view.recordings):
        yield f"Read from the FP32 pass: no {rounded} pass is finite at a loss scale of 1 or more."
        return
    if page.sweep:
        scales = {t.recorded_at for t in page.reading.counted}
    else:
        scales = {r.exponent for r in view.recordings}
    when = "before" if view.before_rounding else "after"
    shifted = "" if scales == {view.exponent} and not page.sweep else ", shifted"
    at = " and ".join(scale(2.0**k) for k in sorted(scales))
    yield f"Read {when} rounding to {rounded}, from the run at loss scale {at}{shifted}."
    if view.batches_without:
        batches = ", ".join(str(b) for b in view.batches_without)
        yield f"Left out: batch {batches}, whose backward is not finite."


def most_lost(page: Page) -> tuple[GradientTensor, str] | None:
    """The tensor that rounding takes most from, and how much; None where it takes nothing."""
    tensor = page.view.whole.most_flushed
    if tensor is None:
        return None
    histogram = tensor.stats.histogram.shift(page.view.exponent - tensor.recorded_at)
    return tensor, f"{histogram.flushed(page.view.fmt):,} of {histogram.total:,} become zero"


def largest(page: Page) -> tuple[GradientTensor, str]:
    """The tensor that overflows first as the scale rises, and from which scale on."""
    tensor = page.view.whole.largest
    first = ceiling_of(tensor.absmax, page.view.fmt) + 1
    return tensor, f"{number(tensor.absmax * 2.0**page.view.exponent)}, overflows from {two_to(first)}"


def tensor_words(tensor: GradientTensor, page: Page) -> tuple[str, str]:
    """The place and the op: ``blocks.1.ff.wo Linear``, ``backward of mm``."""
    op = short_op(tensor.forward_op)
    return name_of(page.view.selection.name_of(tensor), page), f"backward of {op}" if op else "backward"


def name_of(layer: str, page: Page) -> str:
    """A layer with its class, a parameter by its name."""
    if page.view.selection.kind == PARAMETERS:
        return layer
    return f"{layer} {page.types.get(layer, '')}".rstrip() if layer else place("")


def layer_labels(page: Page, width: int, unicode: bool) -> list[str]:
    """The names of the layers shown, in at most ``width`` columns each."""
    names = [layer.name for layer in page.view.layers[: page.top]]
    is_module = page.view.selection.kind != PARAMETERS
    types = [page.types.get(name, "") if is_module and name else "" for name in names]
    return labels([name or place("") for name in names], types, width, "…" if unicode else "...")


def advice(page: Page) -> Iterator[str]:
    """What to do, in sentences."""
    window, better, name = page.reading.window, page.reading.recommended, _format(page)
    if page.is_spoiled:
        yield f"These gradients follow from a fault in forward, see to that first: {page.report.sentence}"
    elif (window is None or better is None) and page.window_of_all is not None:
        proof = "proven by running it" if page.reading.verified else "predicted, not proven"
        yield (
            "By counting zeros these gradients have no window of their own; all together they have one: "
            f"{span(page.window_of_all)}, {proof}."
        )
    elif window is None or better is None:
        yield f"No loss scale holds all of this in {name}."
    elif page.works:
        yield f"Nothing to do: loss scales {span(window)} work, {_proof(page)}."
    else:
        if judgement(page) == FITS:
            yield f"{shown_scale(page)} fits with less than {page.margin_bits:g} bits to spare."
        yield f"Use a loss scale of {scale(2.0**better)}: {span(window)} work, {_proof(page)}."
    if name.startswith("float8"):
        yield "FP8 is used with a scale for each tensor: one for all of them is the harder test."


def commands(page: Page) -> Iterator[tuple[str, str]]:
    """What to look at next: a command, and what it shows."""
    view, better = page.view, page.reading.recommended
    if page.is_spoiled:
        yield page.scan, "where and why"
        return
    if better is None:
        if view.is_recorded_format and _format(page) == "FP16":
            yield f"{page.again} --dtype bfloat16{page.rest}", "BF16 reaches further"
        if page.reading.searched:
            yield page.scan, "which layer is in the way"
    if page.sweep:
        shown = better if better is not None else view.exponent
        yield f"{page.again} --scale {two_to(shown)}{page.rest}", "one scale"
        return
    if better is not None and not page.works:
        yield f"{page.again} --scale {two_to(better)}{page.rest}", "that scale"
    yield f"{page.again} --sweep{page.rest}", "every scale"


def _proof(page: Page) -> str:
    if not page.reading.searched:
        return "as these histograms predict"
    return "proven by running it" if page.reading.verified else "predicted, not proven"


def span(window: Window) -> str:
    """``2^4 .. 2^17``."""
    both = window.low != window.high
    return f"{two_to(window.low)} .. {two_to(window.high)}" if both else two_to(window.low)

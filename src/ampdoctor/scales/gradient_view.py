"""Where the gradients of a trace lie in a format's range, at one loss scale: all together, and by layer."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from ampdoctor.facts.floats import FloatFormat
from ampdoctor.facts.histogram import ExponentHistogram, exponent_of
from ampdoctor.facts.trace import SiteRecord, Trace
from ampdoctor.scales.powers_of_two import LOW_PRECISION, GradientTensor, counted
from ampdoctor.scales.reading import ScaleReading
from ampdoctor.scales.recordings import gradients_of, passes_shown
from ampdoctor.scales.selection import Selection
from ampdoctor.scales.zone_counts import zone_counts


@dataclass(frozen=True)
class Gradients:
    """Some gradients as they are at a loss scale, before they are rounded to the format."""

    name: str
    """Module path or parameter name."""
    tensors: int
    histogram: ExponentHistogram
    """Before rounding; its zeros are zero already."""
    nonzero: int
    """Elements that are nonzero in the reference: what there is to lose."""
    lost: int
    """Of those, elements that are zero after rounding."""
    lost_before: int
    """Elements that are zero before rounding and nonzero in the reference: an earlier op made them zero."""
    flushed: int
    """Elements that this rounding makes zero."""
    bound: str | None
    """``lower``: at least ``lost`` become zero, for a zero made early spreads; None: counted."""
    subnormal: int
    normal: int
    overflowed: int
    """Elements that leave the range; ``overflow_is_exact`` says whether these are all."""
    overflowing: int
    """Tensors in which an element leaves the range."""
    overflow_is_exact: bool
    """False where some elements share their exponent with the largest numbers that fit."""
    most_flushed: GradientTensor | None
    """The tensor that this rounding takes most elements from; None where it takes none."""
    largest: GradientTensor
    """The tensor that overflows first as the scale rises."""

    @property
    def structural_zeros(self) -> int:
        """Elements that are zero in the reference as well."""
        return self.histogram.zeros - self.lost_before

    @property
    def underflow_fraction(self) -> float:
        """Elements that become zero, of those nonzero in the reference."""
        return self.lost / self.nonzero if self.nonzero else 0.0

    def share(self, elements: int) -> float:
        """Part of the elements that are nonzero in the reference."""
        return elements / self.nonzero if self.nonzero else 0.0


@dataclass(frozen=True)
class Recording:
    """A pass that was read."""

    batch: int
    role: str
    """``candidate`` | ``ladder`` | ``reference`` (no low-precision pass at scale 1 or above is finite)"""
    exponent: int
    """Of its loss scale."""


@dataclass(frozen=True)
class GradientView:
    """The answer to: where do the gradients lie?"""

    reading: ScaleReading
    """What is known of the same gradients at every scale."""
    fmt: FloatFormat
    """The format whose zones are shown: the reading's, or the one that most gradients were rounded to."""
    recorded_as: tuple[str, ...]
    """The dtypes that the gradients were rounded to in the recording."""
    before_rounding: bool
    """The values were seen before rounding; else as they were after it."""
    exponent: int
    """Of the loss scale shown."""
    recordings: tuple[Recording, ...]
    """One per batch that can be read."""
    batches_without: tuple[int, ...]
    """Batches that have no finite backward."""
    whole: Gradients
    layers: tuple[Gradients, ...]
    """Worst first."""
    infs: int
    """Elements that are inf by design, in FP32 too: in tensors left out of everything else."""
    nans: int

    @property
    def selection(self) -> Selection:
        """Which gradients these are."""
        return self.reading.selection

    @property
    def is_recorded_format(self) -> bool:
        """The zones are those of the format that the gradients were rounded to."""
        return self.recorded_as == (self.fmt.name,)


def view_gradients(trace: Trace, reading: ScaleReading, exponent: int) -> GradientView:
    """The gradients that the reading is of, at loss scale 2^exponent."""
    selection = reading.selection
    shown = passes_shown(trace, exponent)
    tensors = [t for t in counted(gradients_of(trace, exponent)) if selection.holds(t)]
    tensors = tensors or list(reading.counted)  # at this very scale all of them are infinite by design
    formats = Counter(t.fmt for t in tensors)
    chosen = reading.fmt or formats.most_common(1)[0][0]
    left_out = [r.stats for p in shown for r in p.sites if _is_left_out(r, selection)]
    return GradientView(
        reading=reading,
        fmt=chosen,
        recorded_as=tuple(sorted(f.name for f in formats)),
        before_rounding=all(t.rounds or t.stats.dtype not in LOW_PRECISION for t in tensors),
        exponent=exponent,
        recordings=tuple(Recording(p.batch, p.role, exponent_of(p.loss_scale)) for p in shown),
        batches_without=tuple(sorted({p.batch for p in trace.passes} - {p.batch for p in shown})),
        whole=_gradients("", tensors, exponent, chosen),
        layers=_layers(tensors, exponent, chosen, selection),
        infs=sum(stats.inf for stats in left_out),
        nans=sum(stats.nan for stats in left_out),
    )


def _is_left_out(record: SiteRecord, selection: Selection) -> bool:
    stats = record.stats
    return (
        record.site.phase == "backward"
        and stats.dtype in LOW_PRECISION
        and not stats.is_finite
        and selection.takes(record.site.module, record.parameter)
    )


def _layers(
    tensors: Sequence[GradientTensor], exponent: int, fmt: FloatFormat, selection: Selection
) -> tuple[Gradients, ...]:
    by_name: dict[str, list[GradientTensor]] = defaultdict(list)
    for t in tensors:
        by_name[selection.name_of(t)].append(t)
    layers = [_gradients(name, group, exponent, fmt) for name, group in by_name.items()]
    return tuple(sorted(layers, key=_badness, reverse=True))


def _badness(layer: Gradients) -> tuple[float, float, float]:
    """What leaves the range first, then the share that is lost, then what is kept with fewer bits."""
    overflowed = layer.overflowed / layer.nonzero if layer.overflowed else 0.0
    return overflowed, layer.underflow_fraction, layer.share(layer.subnormal)


def _gradients(name: str, tensors: Sequence[GradientTensor], exponent: int, fmt: FloatFormat) -> Gradients:
    scaled = [(t, t.stats.histogram.shift(exponent - t.recorded_at)) for t in tensors]
    counts = zone_counts([(h, math.ldexp(t.absmax, exponent)) for t, h in scaled], fmt)
    flushed = [h.flushed(fmt) for _, h in scaled]
    most = flushed.index(max(flushed))
    over = [h for t, h in scaled if t.overflows(exponent, fmt)]
    lost = sum(
        t.nonzero - min(h.nonzero - zeroed, t.nonzero) for (t, h), zeroed in zip(scaled, flushed, strict=True)
    )
    shifted_down = any(t.from_reference or t.recorded_at > exponent for t in tensors)
    return Gradients(
        name=name,
        tensors=len(tensors),
        histogram=sum((h for _, h in scaled), ExponentHistogram()),
        nonzero=sum(t.nonzero for t in tensors),
        lost=lost,
        lost_before=sum(t.came_in_as_zero for t in tensors),
        flushed=counts.flushed,
        bound="lower" if lost and shifted_down else None,
        subnormal=counts.subnormal,
        normal=counts.normal,
        overflowed=counts.overflowed,
        overflowing=len(over),
        overflow_is_exact=not any(fmt.max_exponent in h.counts for h in over),
        most_flushed=tensors[most] if flushed[most] else None,
        largest=max(tensors, key=lambda t: t.absmax),
    )

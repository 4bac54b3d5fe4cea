"""Where the gradients of a trace lie in a format's range, at one loss scale: all together, and by layer."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ampdoctor.facts.floats import FloatFormat
from ampdoctor.facts.histogram import ExponentHistogram, exponent_of
from ampdoctor.facts.trace import Pass, ScaleRun, SiteRecord, Trace
from ampdoctor.scales.powers_of_two import (
    HIGHEST,
    LOW_PRECISION,
    GradientTensor,
    ScalePoint,
    ceiling_of,
    counted,
    exact_tensors,
    gradient_tensors,
    is_power_of_two,
    sweep,
)

EVERYTHING, ACTIVATIONS, PARAMETERS = "all", "activations", "parameters"


@dataclass(frozen=True)
class Selection:
    """Which of the gradients to look at."""

    kind: str = EVERYTHING
    """``all`` | ``activations`` (gradients on their way) | ``parameters`` (those that arrive)"""
    layers: tuple[str, ...] = ()
    """Globs over module paths, parents included, or over parameter names; () for all."""

    def takes(self, module: str, parameter: str) -> bool:
        """True for a tensor that is asked for; ``parameter``: the one whose gradient it is, or ''."""
        if self.kind != EVERYTHING and (self.kind == PARAMETERS) != bool(parameter):
            return False
        return not self.layers or any(
            fnmatchcase(path, glob)
            for name in {module, parameter or module}
            for path in _with_parents(name)
            for glob in self.layers
        )

    def name_of(self, tensor: GradientTensor) -> str:
        """The layer that the tensor is shown under."""
        return tensor.parameter if self.kind == PARAMETERS else tensor.site.module


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
class ScaleSeen:
    """What running the candidate at a scale gave, over all batches that were run there."""

    loss_scale: float
    finite: bool
    underflow_fraction: float | None
    """Counted; None where not finite."""


@dataclass(frozen=True)
class GradientView:
    """The answer to: where do the gradients lie?"""

    selection: Selection
    fmt: FloatFormat
    """The format whose zones are asked about."""
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
    points: tuple[ScalePoint, ...]
    """Every power of two from 2^0 to 2^32."""
    tensors: tuple[GradientTensor, ...]
    """What ``points`` rest on."""
    runs: tuple[ScaleSeen, ...]
    """Scales that were run, in rising order; () for a selection or another format than the recording's."""

    @property
    def is_recorded_format(self) -> bool:
        """The zones are those of the format that the gradients were rounded to."""
        return self.recorded_as == (self.fmt.name,)


def view_gradients(
    trace: Trace, exponent: int, fmt: FloatFormat | None = None, selection: Selection | None = None
) -> GradientView | None:
    """The gradients at loss scale 2^exponent in ``fmt``'s range, by default the format they were rounded to.

    None where no pass has a finite backward with low-precision gradients, or the selection takes none.
    """
    selection = selection or Selection()
    shown = _passes_to_read(trace, exponent)
    tensors = _tensors(trace, shown, selection)
    if not tensors:
        return None
    swept = gradients_to_sweep(trace, selection)
    formats = Counter(t.fmt for t in tensors)
    chosen = fmt or formats.most_common(1)[0][0]
    as_it_ran = selection == Selection() and set(formats) == {chosen}
    left_out = [r.stats for p in shown for r in p.sites if _is_left_out(r, selection)]
    return GradientView(
        selection=selection,
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
        points=tuple(sweep(swept, chosen)),
        tensors=tuple(swept),
        runs=tuple(_runs(trace.scale_runs)) if as_it_ran else (),
    )


def gradients_to_sweep(trace: Trace, selection: Selection | None = None) -> list[GradientTensor]:
    """The gradients that tell about every loss scale: of each batch those of the pass that lost least."""
    return _tensors(trace, _passes_to_read(trace, None), selection or Selection())


def has_finite_backward(trace: Trace) -> bool:
    """True where some batch's gradients can be looked at."""
    return bool(_passes_to_read(trace, None))


def predicted_window(
    view: GradientView, underflow_limit: float, margin_bits: float
) -> tuple[int, int] | None:
    """Exponents of the lowest and the highest scale that fit by the histograms; None where none does."""
    low = next((p.exponent for p in view.points if p.underflow_fraction < underflow_limit), None)
    ceiling = min(ceiling_of(t.absmax, view.fmt) for t in view.tensors)
    high = min(ceiling - math.ceil(margin_bits), HIGHEST)
    return None if low is None or low > high else (low, high)


def _passes_to_read(trace: Trace, exponent: int | None) -> list[Pass]:
    """Of each batch the finite pass at 2^exponent; else the one at the highest scale, which lost least.

    Where only scales below 1 are finite, those have lost what higher ones keep: there it is the reference.
    """
    best: dict[int, Pass] = {}
    for p in _finite_passes(trace):
        known = best.get(p.batch)
        if known is None or _rank(p, exponent) > _rank(known, exponent):
            best[p.batch] = p
    failed = {r.batch for r in trace.scale_runs} - {r.batch for r in trace.scale_runs if _works(r)}
    best.update({p.batch: p for p in trace.passes if p.role == "reference" and p.batch in failed})
    return [best[batch] for batch in sorted(best)]


def _rank(one_pass: Pass, exponent: int | None) -> tuple[bool, float]:
    wanted = exponent is not None and one_pass.loss_scale == 2.0**exponent
    return wanted, one_pass.loss_scale


def _works(run: ScaleRun) -> bool:
    return run.finite and run.loss_scale >= 1


def _tensors(trace: Trace, passes: Sequence[Pass], selection: Selection) -> list[GradientTensor]:
    """The selected tensors of these passes, where they are rounded."""
    references = {p.batch: p for p in trace.passes if p.role == "reference"}
    candidates = {p.batch: p for p in trace.passes if p.role == "candidate"}
    found: list[GradientTensor] = []
    for p in passes:
        if p.role == "reference":
            found += _exact_tensors(candidates[p.batch], p)
        else:
            found += counted(gradient_tensors(p, references.get(p.batch)))
    return [t for t in found if selection.takes(t.site.module, t.parameter)]


def _exact_tensors(candidate: Pass, reference: Pass) -> list[GradientTensor]:
    """The reference's tensors, at the sites where the candidate rounds its own."""
    rounding = {r.site for r in candidate.sites if r.stats.flushed is not None}
    tensors = exact_tensors(candidate, reference)
    return [t for t in tensors if t.site in rounding] or tensors


def _finite_passes(trace: Trace) -> list[Pass]:
    """The low-precision passes with a finite backward, at powers of two: their bins can be shifted."""
    proven = {(r.batch, r.loss_scale) for r in trace.scale_runs if r.finite}
    return [
        p
        for p in trace.passes
        if p.role in ("candidate", "ladder")
        and is_power_of_two(p.loss_scale)
        and ((p.batch, p.loss_scale) in proven if trace.scale_runs else _looks_finite(p))
    ]


def _looks_finite(one_pass: Pass) -> bool:
    """For a trace without scale runs: the loss and every gradient are finite."""
    return (
        one_pass.backward_ran
        and one_pass.raised is None
        and not one_pass.interrupted
        and one_pass.loss is not None
        and math.isfinite(one_pass.loss)
        and all(p.nan == 0 and p.inf == 0 for p in one_pass.parameters)
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
    total = sum((h for _, h in scaled), ExponentHistogram())
    flushed = [h.flushed(fmt) for _, h in scaled]
    most = flushed.index(max(flushed))
    subnormal = total.subnormal(fmt)
    over = [h for t, h in scaled if t.overflows(exponent, fmt)]
    overflowed = sum(max(h.overflowed(fmt), 1) for h in over)
    return Gradients(
        name=name,
        tensors=len(tensors),
        histogram=total,
        nonzero=sum(t.nonzero for t in tensors),
        lost=sum(
            t.nonzero - min(h.nonzero - zeroed, t.nonzero)
            for (t, h), zeroed in zip(scaled, flushed, strict=True)
        ),
        lost_before=sum(max(0, t.nonzero - h.nonzero) for t, h in scaled),
        flushed=sum(flushed),
        subnormal=subnormal,
        normal=total.nonzero - sum(flushed) - subnormal - overflowed,
        overflowed=overflowed,
        overflowing=len(over),
        overflow_is_exact=not any(fmt.max_exponent in h.counts for h in over),
        most_flushed=tensors[most] if flushed[most] else None,
        largest=max(tensors, key=lambda t: t.absmax),
    )


def _runs(scale_runs: Sequence[ScaleRun]) -> Iterator[ScaleSeen]:
    for scale in sorted({r.loss_scale for r in scale_runs}):
        here = [r for r in scale_runs if r.loss_scale == scale]
        finite = all(r.finite for r in here)
        zeroed, nonzero = sum(r.zeroed for r in here), sum(r.nonzero for r in here)
        yield ScaleSeen(scale, finite, zeroed / nonzero if finite and nonzero else None)


def _with_parents(name: str) -> Iterator[str]:
    """``a.b.c``, ``a.b``, ``a``; the root module's '' alone."""
    yield name
    while "." in name:
        name = name.rpartition(".")[0]
        yield name

"""The window of loss scales that work, from the recorded histograms and the runs that proved them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ampdoctor.facts.alternatives import AlternativeRun
from ampdoctor.facts.floats import BFLOAT16, FloatFormat
from ampdoctor.facts.trace import ScaleRun, Trace
from ampdoctor.facts.words import AlternativeKind
from ampdoctor.scales.gradient_harm import harmed
from ampdoctor.scales.powers_of_two import (
    HIGHEST,
    LOWEST,
    GradientTensor,
    ScalePoint,
    ceiling_for,
    counted,
    floor_of,
    limiting,
    most_flushed,
    predicted_window,
    recommended_in,
    sweep,
    top_below,
)
from ampdoctor.scales.recordings import gradients_of, reference_tensors
from ampdoctor.scales.runs import ScaleSeen, parameters, scales_seen, with_runs
from ampdoctor.scales.selection import PARAMETERS, Selection


@dataclass(frozen=True)
class Window:
    """Exponents of the lowest and the highest loss scale that work, both included."""

    low: int
    high: int


@dataclass(frozen=True)
class Alternative:
    """Something else to do where no scale works, and the window it would give."""

    kind: AlternativeKind
    module: str
    window: Window | None
    rest: Window | None = None
    """For a module scaled apart: the window of everything else."""
    run: AlternativeRun | None = None
    """Where it was run. The windows are predicted; None where the prediction is of another module."""


@dataclass(frozen=True)
class ScaleReading:
    """What is known of loss scales. Exponents are of powers of two."""

    selection: Selection
    """The gradients it is of."""
    fmt: FloatFormat | None
    """The format asked about; None: each tensor's own."""
    tensors: tuple[GradientTensor, ...]
    """Every low-precision gradient: each may overflow."""
    counted: tuple[GradientTensor, ...]
    """Those that round: what becomes zero is counted there."""
    points: tuple[ScalePoint, ...]
    """Every power of two from 2^0 to 2^32."""
    runs: tuple[ScaleSeen, ...]
    """Scales that were run, in rising order; () for activations alone, for some of the layers of a selection
    that has activations, and for another format than the recording's."""
    searched: bool
    """All gradients in the format they ran in, and scales were run: the window is what runs proved. Else it
    is what the histograms predict."""
    ceiling: int | None
    """The highest scale at which nothing overflows, without a margin; None if no scale run was finite."""
    window: Window | None
    """None: no scale works."""
    recommended: int | None
    verified: bool
    """The recommended scale was run and is finite; the first past the ceiling was run and overflows where
    the histograms say."""
    high_limit: GradientTensor | None
    """The tensor that overflows first as the scale rises."""
    low_limit: GradientTensor | None
    """The tensor that loses most elements below the window, or at the ceiling where there is no window."""
    by_parameters: bool
    """The low end is where parameters begin to lose, because counting zeros would leave no window."""
    alternatives: tuple[Alternative, ...]
    """For a window that is empty, where scales were searched."""

    def works(self, exponent: int) -> bool:
        """2^exponent lies in the window."""
        return self.window is not None and self.window.low <= exponent <= self.window.high

    def point(self, exponent: int) -> ScalePoint | None:
        """What is known of 2^exponent; None outside 2^0 .. 2^32."""
        return self.points[exponent - LOWEST] if LOWEST <= exponent <= HIGHEST else None


def read_scales(
    trace: Trace,
    underflow_limit: float,
    margin_bits: float,
    selection: Selection | None = None,
    fmt: FloatFormat | None = None,
) -> ScaleReading | None:
    """The reading; None where no batch has a low-precision gradient in the selection.

    ``underflow_limit``: the share of elements that may become zero where no run says what that harms;
    ``margin_bits``: how far below overflow a scale stays; ``fmt``: another format than that of the run.
    """
    selection = selection or Selection()
    recorded = gradients_of(trace)
    tensors = [t for t in recorded if selection.holds(t)]
    rounding = [t for t in counted(recorded) if selection.holds(t)]
    if not rounding:
        return None
    as_run = fmt is None or {t.fmt for t in rounding} == {fmt}
    searched = bool(trace.scale_runs) and as_run and selection == Selection()
    runs = trace.scale_runs if searched else ()
    seen = _seen(trace, selection) if as_run else []
    points = with_runs(sweep(rounding, fmt), seen)
    ceiling = _ceiling(tensors, fmt, runs)
    high = None if ceiling is None else top_below(ceiling, margin_bits)
    window, by_parameters = None, False
    if high is not None:
        window, by_parameters = _window(points, runs, high, underflow_limit)
    recommended = None if window is None else recommended_in(window.low, window.high)
    below = None if ceiling is None else window.low - 1 if window else max(ceiling, LOWEST)
    return ScaleReading(
        selection=selection,
        fmt=fmt,
        tensors=tuple(tensors),
        counted=tuple(rounding),
        points=tuple(points),
        runs=tuple(seen),
        searched=searched,
        ceiling=ceiling,
        window=window,
        recommended=recommended,
        verified=_verified(runs, tensors, recommended, ceiling),
        high_limit=None if ceiling is None else limiting(tensors),
        low_limit=None if below is None else most_flushed(tensors, below),
        by_parameters=by_parameters,
        alternatives=_with_alternatives_run(_alternatives(trace, underflow_limit, margin_bits), trace)
        if searched and window is None
        else (),
    )


def _ceiling(
    tensors: Sequence[GradientTensor], fmt: FloatFormat | None, runs: Sequence[ScaleRun]
) -> int | None:
    """What the histograms predict, unless a run proves it lower; None where no run was finite."""
    if runs and not any(r.finite for r in runs):
        return None
    bad = [_exponent(r) for r in runs if not r.finite and r.loss_scale >= 1]
    return min([ceiling_for(tensors, fmt), *(b - 1 for b in bad)])


def _seen(trace: Trace, selection: Selection) -> list[ScaleSeen]:
    """What the runs say about a selection: all gradients are counted there, and those of parameters."""
    if selection == Selection():
        return scales_seen(trace.scale_runs)
    if selection.kind != PARAMETERS:
        return []
    modules = {r.parameter: r.site.module for p in trace.passes for r in p.sites if r.parameter}
    taken = {name for name, module in modules.items() if selection.takes(module, name)}
    return scales_seen(trace.scale_runs, parameters(taken.__contains__))


def best_errors(trace: Trace, scales: ScaleReading | None) -> dict[int, dict[str, float | None]]:
    """Of each batch the parameters' relative errors at the recommended scale; {} where it was not run."""
    if scales is None or scales.recommended is None:
        return {}
    return {
        r.batch: {p.name: p.relative_error for p in r.parameters}
        for r in trace.scale_runs
        if r.finite and _exponent(r) == scales.recommended
    }


def _window(
    points: Sequence[ScalePoint], runs: Sequence[ScaleRun], high: int, underflow_limit: float
) -> tuple[Window | None, bool]:
    """(the window, whether parameters set its low end).

    Counting zeros decides only where the gradients were not compared with the reference's.
    """
    if any(r.parameters for r in runs):
        low = _lowest_without_harm(runs, high)
        return (None if low is None else Window(low, high)), True
    low = floor_of([p.underflow_fraction for p in points], underflow_limit)
    return (None if low is None or low > high else Window(low, high)), False


def _lowest_without_harm(runs: Sequence[ScaleRun], high: int) -> int | None:
    """The lowest scale run, up to 2^high, at and above which no parameter of any batch was harmed."""
    best = max((r.loss_scale for r in runs if r.finite and _exponent(r) <= high), default=None)
    errors = {r.batch: {p.name: p.relative_error for p in r.parameters} for r in runs if r.loss_scale == best}
    harm_at: dict[int, bool] = {}
    for r in runs:
        if r.finite and LOWEST <= _exponent(r) <= high:
            harms = bool(harmed(r.parameters, errors.get(r.batch)))
            harm_at[_exponent(r)] = harm_at.get(_exponent(r), False) or harms
    low = None
    for exponent in sorted(harm_at, reverse=True):
        if harm_at[exponent]:
            break
        low = exponent
    return low


def _verified(
    runs: Sequence[ScaleRun],
    tensors: Sequence[GradientTensor],
    recommended: int | None,
    ceiling: int | None,
) -> bool:
    if not runs or recommended is None or ceiling is None:
        return False
    here = [r for r in runs if _exponent(r) == recommended]
    if {r.batch for r in here} != {r.batch for r in runs} or not all(r.finite for r in here):
        return False
    if ceiling >= HIGHEST:
        return True  # past 2^32 there is nothing to prove
    past = [r for r in runs if _exponent(r) == ceiling + 1 and not r.finite and r.overflow is not None]
    predicted = {(t.batch, t.site) for t in tensors if t.overflows(ceiling + 1)}
    return any(r.overflow is not None and (r.batch, r.overflow.site) in predicted for r in past)


def _alternatives(trace: Trace, underflow_limit: float, margin_bits: float) -> tuple[Alternative, ...]:
    """What would help, each with the window that the reference's histograms give."""
    tensors = reference_tensors(trace.passes)
    first = limiting(tensors)
    if first is None:
        return ()

    def window(part: Sequence[GradientTensor], fmt: FloatFormat | None = None) -> Window | None:
        ends = predicted_window(part, underflow_limit, margin_bits, fmt)
        return None if ends is None else Window(*ends)

    found = []
    if first.fmt is not BFLOAT16:
        found.append(Alternative("bfloat16", "", window(tensors, BFLOAT16)))
    module = first.site.module
    if module:
        rest = [t for t in tensors if not _inside(t, module)]
        own = [t for t in tensors if _inside(t, module)]
        found.append(Alternative("module-in-fp32", module, window(rest)))
        found.append(Alternative("module-scaled-apart", module, window(own), window(rest)))
    return tuple(found)


def _with_alternatives_run(predicted: Sequence[Alternative], trace: Trace) -> tuple[Alternative, ...]:
    """Those that were predicted and those that were run, each once."""
    runs = {(run.kind, run.module): run for run in trace.alternatives}
    known = [replace(a, run=runs.pop((a.kind, a.module), None)) for a in predicted]
    return (*known, *(Alternative(run.kind, run.module, None, run=run) for run in runs.values()))


def _inside(tensor: GradientTensor, module: str) -> bool:
    return tensor.site.module == module or tensor.site.module.startswith(module + ".")


def _exponent(run: ScaleRun) -> int:
    """The exponent of a run's scale, rounded down where it is no power of two."""
    return math.frexp(run.loss_scale)[1] - 1

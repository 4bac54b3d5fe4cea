"""The window of loss scales that work, from the recorded histograms and the runs that proved them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ampdoctor.facts.floats import BFLOAT16, FloatFormat
from ampdoctor.facts.trace import ScaleRun, Trace
from ampdoctor.scales.gradient_harm import harmed
from ampdoctor.scales.powers_of_two import (
    HIGHEST,
    LOWEST,
    GradientTensor,
    ScalePoint,
    ceiling_for,
    floor_of,
    limiting,
    most_flushed,
    predicted_window,
    recommended_in,
    sweep,
    top_below,
)
from ampdoctor.scales.recordings import recorded_tensors, reference_tensors
from ampdoctor.scales.runs import scales_seen, with_runs


@dataclass(frozen=True)
class Window:
    """Exponents of the lowest and the highest loss scale that work, both included."""

    low: int
    high: int


@dataclass(frozen=True)
class Alternative:
    """Something else to do where no scale works, and the window it would give."""

    kind: str
    """``bfloat16`` | ``module-in-fp32`` | ``module-scaled-apart``"""
    module: str
    window: Window | None
    rest: Window | None = None
    """For a module scaled apart: the window of everything else."""


@dataclass(frozen=True)
class ScaleReading:
    """What is known of loss scales. Exponents are of powers of two."""

    tensors: tuple[GradientTensor, ...]
    points: tuple[ScalePoint, ...]
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
    """For a window that is empty."""


def read_scales(trace: Trace, underflow_limit: float, margin_bits: float) -> ScaleReading | None:
    """The reading; None where the trace has no scale runs, or no low-precision gradient.

    ``underflow_limit``: the share of elements that may become zero where no run says what that harms;
    ``margin_bits``: how far below overflow a scale stays.
    """
    if not trace.scale_runs:
        return None
    tensors = recorded_tensors(trace.passes)
    predicted = partial(predicted_window, limit=underflow_limit, margin_bits=margin_bits)
    if not tensors:
        everything_fails = not any(r.finite for r in trace.scale_runs)
        return _nothing_works(reference_tensors(trace.passes), predicted) if everything_fails else None
    complete = {t.batch for t in tensors} == {r.batch for r in trace.scale_runs}
    first = limiting(tensors)
    assert first is not None
    bad = [_exponent(r) for r in trace.scale_runs if not r.finite and r.loss_scale >= 1]
    ceiling = min([ceiling_for(tensors), *(b - 1 for b in bad)])
    points = with_runs(sweep(tensors), scales_seen(trace.scale_runs))
    window, by_parameters = None, False
    high = top_below(ceiling, margin_bits) if complete else None
    if high is not None:
        window, by_parameters = _window(points, trace.scale_runs, high, underflow_limit)
    recommended = None if window is None else recommended_in(window.low, window.high)
    return ScaleReading(
        tensors=tuple(tensors),
        points=tuple(points),
        ceiling=ceiling,
        window=window,
        recommended=recommended,
        verified=recommended is not None and _verified(trace.scale_runs, tensors, recommended, ceiling),
        high_limit=first,
        low_limit=most_flushed(tensors, window.low - 1 if window else max(ceiling, LOWEST)),
        by_parameters=by_parameters,
        alternatives=()
        if window is not None
        else tuple(_alternatives(reference_tensors(trace.passes), predicted)),
    )


def best_errors(trace: Trace, scales: ScaleReading | None) -> dict[int, dict[str, float | None]]:
    """Of each batch the parameters' relative errors at the recommended scale; {} where it was not run."""
    if scales is None or scales.recommended is None:
        return {}
    return {
        r.batch: {p.name: p.relative_error for p in r.parameters}
        for r in trace.scale_runs
        if r.finite and _exponent(r) == scales.recommended
    }


Predicted = Callable[..., tuple[int, int] | None]
"""``predicted_window`` with the limits given."""


def _nothing_works(exact: Sequence[GradientTensor], predicted: Predicted) -> ScaleReading:
    """No run was finite: a derivative that the format cannot hold whatever the scale."""
    alternatives = tuple(_alternatives(exact, predicted))
    return ScaleReading((), (), None, None, None, False, None, None, False, alternatives)


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
    runs: Sequence[ScaleRun], tensors: Sequence[GradientTensor], recommended: int, ceiling: int
) -> bool:
    here = [r for r in runs if _exponent(r) == recommended]
    if {r.batch for r in here} != {r.batch for r in runs} or not all(r.finite for r in here):
        return False
    if ceiling >= HIGHEST:
        return True  # past 2^32 there is nothing to prove
    past = [r for r in runs if _exponent(r) == ceiling + 1 and not r.finite and r.overflow is not None]
    predicted = {(t.batch, t.site) for t in tensors if t.overflows(ceiling + 1)}
    return any(r.overflow is not None and (r.batch, r.overflow.site) in predicted for r in past)


def _alternatives(tensors: Sequence[GradientTensor], predicted: Predicted) -> list[Alternative]:
    """What would help, each with the window that the reference's histograms give."""
    first = limiting(tensors)
    if first is None:
        return []

    def window(part: Sequence[GradientTensor], fmt: FloatFormat | None = None) -> Window | None:
        ends = predicted(part, fmt=fmt)
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
    return found


def _inside(tensor: GradientTensor, module: str) -> bool:
    return tensor.site.module == module or tensor.site.module.startswith(module + ".")


def _exponent(run: ScaleRun) -> int:
    """The exponent of a run's scale, rounded down where it is no power of two."""
    return math.frexp(run.loss_scale)[1] - 1

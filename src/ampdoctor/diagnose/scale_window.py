"""The window of loss scales that work, from the recorded histograms and the runs that proved them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ampdoctor.diagnose.policy import Policy
from ampdoctor.facts.floats import BFLOAT16, FloatFormat
from ampdoctor.facts.trace import Pass, ScaleRun, Trace
from ampdoctor.scales.gradient_harm import harmed
from ampdoctor.scales.powers_of_two import (
    HIGHEST,
    HIGHEST_RECOMMENDED,
    LOWEST,
    GradientTensor,
    ScalePoint,
    ceiling_of,
    exact_tensors,
    floor_of,
    gradient_tensors,
    limiting,
    most_flushed,
    sweep,
)


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


def read_scales(trace: Trace, policy: Policy) -> ScaleReading | None:
    """The reading; None where the trace has no scale runs, or no low-precision gradient."""
    if not trace.scale_runs:
        return None
    recordings = _recordings(trace)
    references = {p.batch: p for p in trace.passes if p.role == "reference"}
    tensors = [t for p in recordings for t in gradient_tensors(p, references.get(p.batch))]
    exact = _exact(trace, references)
    if not tensors:
        everything_fails = not any(r.finite for r in trace.scale_runs)
        return _nothing_works(exact, policy) if everything_fails else None
    complete = {p.batch for p in recordings} == {r.batch for r in trace.scale_runs}
    first = limiting(tensors)
    assert first is not None
    ceiling = ceiling_of(first.absmax, first.fmt)
    bad = [_exponent(r) for r in trace.scale_runs if not r.finite and r.loss_scale >= 1]
    ceiling = min([ceiling, *(b - 1 for b in bad)])
    window, by_parameters = None, False
    if complete and ceiling >= LOWEST:
        window, by_parameters = _window(tensors, trace.scale_runs, ceiling, policy)
    recommended = None if window is None else max(window.low, min(window.high, HIGHEST_RECOMMENDED))
    return ScaleReading(
        tensors=tuple(tensors),
        points=tuple(sweep(tensors)),
        ceiling=ceiling,
        window=window,
        recommended=recommended,
        verified=recommended is not None and _verified(trace.scale_runs, tensors, recommended, ceiling),
        high_limit=first,
        low_limit=most_flushed(tensors, window.low - 1 if window else max(ceiling, LOWEST)),
        by_parameters=by_parameters,
        alternatives=() if window is not None else tuple(_alternatives(exact, policy)),
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


def _nothing_works(exact: Sequence[GradientTensor], policy: Policy) -> ScaleReading:
    """No run was finite: a derivative that the format cannot hold whatever the scale."""
    alternatives = tuple(_alternatives(exact, policy))
    return ScaleReading((), (), None, None, None, False, None, None, False, alternatives)


def _exact(trace: Trace, references: Mapping[int, Pass]) -> list[GradientTensor]:
    return [
        t
        for p in trace.passes
        if p.role == "candidate" and p.batch in references
        for t in exact_tensors(p, references[p.batch])
    ]


def _recordings(trace: Trace) -> list[Pass]:
    """Of each batch the pass to read: the one at the highest scale that ended finite."""
    finite = {(r.batch, r.loss_scale) for r in trace.scale_runs if r.finite}
    best: dict[int, Pass] = {}
    for p in trace.passes:
        if p.role in ("candidate", "ladder") and (p.batch, p.loss_scale) in finite:
            known = best.get(p.batch)
            if known is None or known.loss_scale < p.loss_scale:
                best[p.batch] = p
    return list(best.values())


def _window(
    tensors: Sequence[GradientTensor], runs: Sequence[ScaleRun], ceiling: int, policy: Policy
) -> tuple[Window | None, bool]:
    """(the window, whether parameters set its low end)."""
    top = ceiling - math.ceil(policy.scale_margin_bits)
    high = top if top >= LOWEST else ceiling
    low = floor_of(tensors, policy.gradient_underflow)
    if low is not None and low <= high:
        return Window(low, min(high, HIGHEST)), False
    low = _lowest_without_harm(runs, high)
    return (None if low is None else Window(low, min(high, HIGHEST))), True


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


def _alternatives(tensors: Sequence[GradientTensor], policy: Policy) -> list[Alternative]:
    """What would help, each with the window that the reference's histograms give."""
    first = limiting(tensors)
    if first is None:
        return []
    found = []
    if first.fmt is not BFLOAT16:
        found.append(Alternative("bfloat16", "", _predicted(tensors, policy, BFLOAT16)))
    module = first.site.module
    if module:
        rest = [t for t in tensors if not _inside(t, module)]
        own = [t for t in tensors if _inside(t, module)]
        found.append(Alternative("module-in-fp32", module, _predicted(rest, policy)))
        found.append(
            Alternative("module-scaled-apart", module, _predicted(own, policy), _predicted(rest, policy))
        )
    return found


def _predicted(
    tensors: Sequence[GradientTensor], policy: Policy, fmt: FloatFormat | None = None
) -> Window | None:
    """The window by histograms alone."""
    first = limiting(tensors)
    if first is None:
        return Window(LOWEST, HIGHEST)
    high = min(ceiling_of(first.absmax, fmt or first.fmt) - math.ceil(policy.scale_margin_bits), HIGHEST)
    low = floor_of(tensors, policy.gradient_underflow, fmt)
    return None if low is None or low > high else Window(low, high)


def _inside(tensor: GradientTensor, module: str) -> bool:
    return tensor.site.module == module or tensor.site.module.startswith(module + ".")


def _exponent(run: ScaleRun) -> int:
    """The exponent of a run's scale, rounded down where it is no power of two."""
    return math.frexp(run.loss_scale)[1] - 1

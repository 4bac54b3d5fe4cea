"""Which recording of each gradient tensor to read: the one place that chooses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ampdoctor.facts.site import Site
from ampdoctor.facts.trace import Pass, SiteRecord, Trace
from ampdoctor.scales.powers_of_two import (
    LOW_PRECISION,
    GradientTensor,
    exact_tensors,
    gradient_tensors,
    is_power_of_two,
)


def is_finite(run: Pass) -> bool:
    """Backward ran, and no gradient that arrives at a parameter is NaN or inf: what GradScaler looks at.

    An infinity on the way that arrives nowhere met a mask (``where``, a clamp's, a ReLU's): backward is
    linear in the incoming gradient, so that only a mask turns it into a finite value, and that is a zero.
    """
    return (
        run.raised is None
        and not run.interrupted
        and run.backward_ran
        and all(p.nan == 0 and p.inf == 0 for p in run.parameters)
    )


def finite_passes(passes: Sequence[Pass]) -> list[Pass]:
    """The low-precision passes with a finite backward, at powers of two: their bins can be shifted."""
    low = (p for p in passes if p.role in ("candidate", "ladder") and is_power_of_two(p.loss_scale))
    return [p for p in low if is_finite(p)]


def gradients_of(trace: Trace, exponent: int | None = None) -> list[GradientTensor]:
    """Every low-precision tensor of backward, where most of it was seen, or as it was at 2^exponent.

    A batch that is finite at no scale of 1 or more is read from its reference: lower ones lose what FP32 has.
    """
    failed = _failed(trace)
    found = [t for t in recorded_tensors(trace.passes, exponent) if t.batch not in failed]
    return found + [t for t in reference_tensors(trace.passes) if t.batch in failed]


def passes_shown(trace: Trace, exponent: int | None = None) -> list[Pass]:
    """Of each batch the pass that ``gradients_of`` reads first."""
    failed = _failed(trace)
    passes = [p for p in passes_to_read(trace.passes, exponent) if p.batch not in failed]
    return passes + [p for p in trace.passes if p.role == "reference" and p.batch in failed]


def _failed(trace: Trace) -> set[int]:
    """Batches that were searched and are finite at no scale of 1 or more."""
    works = {r.batch for r in trace.scale_runs if r.finite and r.loss_scale >= 1}
    return {r.batch for r in trace.scale_runs} - works


def passes_to_read(passes: Sequence[Pass], exponent: int | None = None) -> list[Pass]:
    """Of each batch the finite pass at 2^exponent, else the one at the highest scale, which lost least."""
    best: dict[int, Pass] = {}
    for p in finite_passes(passes):
        known = best.get(p.batch)
        if known is None or _rank(p, exponent) > _rank(known, exponent):
            best[p.batch] = p
    return [best[batch] for batch in sorted(best)]


def recorded_tensors(passes: Sequence[Pass], exponent: int | None = None) -> list[GradientTensor]:
    """Every low-precision tensor of backward, of each batch that has a finite pass.

    Each is read where most of it was seen. At ``exponent``, where the batch ran there, that is this very
    run. Else it is the highest scale at which this tensor is finite, though others overflow there. What came
    in as zero even so is not known from a run: there the reference has the values, before any rounding.
    """
    references = {p.batch: p for p in passes if p.role == "reference"}
    found: list[GradientTensor] = []
    for chosen in passes_to_read(passes, exponent):
        twin = references.get(chosen.batch)
        own = gradient_tensors(chosen, twin)
        if exponent is not None and chosen.loss_scale == 2.0**exponent:
            found += own
            continue
        higher = [p for p in passes if _may_be_read(p, chosen)]
        for p in sorted(higher, key=lambda p: p.loss_scale):
            better = {t.site: t for t in gradient_tensors(p, twin)}
            own = [better.get(t.site, t) for t in own]
        found += _completed(own, twin)
    return found


def reference_tensors(passes: Sequence[Pass]) -> list[GradientTensor]:
    """The tensors of every batch as its reference has them, at the sites where the candidate rounds."""
    references = {p.batch: p for p in passes if p.role == "reference"}
    found: list[GradientTensor] = []
    for candidate in passes:
        if candidate.role == "candidate" and candidate.batch in references:
            rounding = {r.site for r in candidate.sites if r.stats.flushed is not None}
            tensors = exact_tensors(candidate, references[candidate.batch])
            found += [t for t in tensors if t.site in rounding] or tensors
    return found


def _rank(one_pass: Pass, exponent: int | None) -> tuple[bool, float]:
    wanted = exponent is not None and one_pass.loss_scale == 2.0**exponent
    return wanted, one_pass.loss_scale


def _may_be_read(one_pass: Pass, chosen: Pass) -> bool:
    """A pass of the same batch at a higher scale, in which something overflows and other tensors do not."""
    return (
        one_pass.role in ("candidate", "ladder")
        and one_pass.batch == chosen.batch
        and one_pass.loss_scale > chosen.loss_scale
        and one_pass.backward_ran
        and one_pass.raised is None
        and not one_pass.interrupted
    )


def _completed(tensors: Sequence[GradientTensor], reference: Pass | None) -> list[GradientTensor]:
    """The tensors; those that arrived with zeros where FP32 has values, with the reference's values."""
    if reference is None:
        return list(tensors)
    twins: dict[Site, SiteRecord] = {r.site: r for r in reference.sites if r.site.phase == "backward"}
    return [_with_reference(t, twins.get(t.site)) for t in tensors]


def _with_reference(tensor: GradientTensor, twin: SiteRecord | None) -> GradientTensor:
    if (
        twin is None
        or not tensor.came_in_as_zero
        or not twin.stats.is_finite
        or twin.stats.numel != tensor.stats.numel
        or twin.stats.dtype in LOW_PRECISION  # a region that is half in the reference too has lost the same
    ):
        return tensor
    return replace(
        tensor,
        stats=twin.stats,
        recorded_at=0,
        absmax=tensor.absmax or twin.stats.absmax or 0.0,
        from_reference=True,
    )

"""A birth guessed from the counts alone, for a sick pass whose second look did not see the fault again."""

from __future__ import annotations

from ampdoctor.diagnose.outcome import find_pass, is_finite, is_healthy
from ampdoctor.facts.trace import Birth, Pass, SiteRecord, Trace

INFERRED_ID = -1
"""No birth of a trace has it: those count from 0."""


def inferred_birth(trace: Trace) -> Birth | None:
    """The first site that holds a non-finite value FP32 has not, as a birth without exact value or path.

    None where every candidate pass is healthy, or none shows where its bad value comes from.
    """
    forward_only = trace.environment.forward_only
    for candidate in trace.passes:
        if candidate.role == "candidate" and candidate.raised is None and not candidate.interrupted:
            record = None if is_healthy(candidate, forward_only) else _first_bad(candidate, trace)
            if record is not None:
                return _birth(record, candidate, trace)
    return None


def _first_bad(candidate: Pass, trace: Trace) -> SiteRecord | None:
    reference = find_pass(trace, "reference", candidate.batch)
    sound = {r.site.key for r in reference.sites if r.stats.is_finite} if reference else set()
    bad = [r for r in candidate.sites if not r.stats.is_finite]
    new = [r for r in bad if r.site.key in sound]
    # without a sound twin to compare with, a NaN is the better suspect: an infinity may be a mask
    suspects = new or [r for r in bad if r.stats.nan] or bad
    return min(suspects, key=lambda r: (r.site.phase == "backward", r.order), default=None)


def _birth(record: SiteRecord, candidate: Pass, trace: Trace) -> Birth:
    reference = find_pass(trace, "reference", candidate.batch)
    twins = [r for r in reference.sites if r.site == record.site] if reference else []
    stats = record.stats
    return Birth(
        id=INFERRED_ID,
        origin="op",
        batch=candidate.batch,
        loss_scale=candidate.loss_scale,
        value="nan" if stats.nan else "inf",
        dtype=stats.dtype,
        order=record.order,
        site=record.site,
        source=record.source,
        backward_source=None,
        forward_op=record.forward_op,
        implicit_cast=record.implicit_cast,
        name="",
        shape=stats.shape,
        index=(),
        count=stats.nan + stats.inf,
        samples=None,
        exact_value=None,
        rerun="not-run",
        reference="absent" if not twins else "finite" if twins[0].stats.is_finite else "same",
        reference_value=twins[0].stats.absmax if twins else None,
        operands=(),
        constant=None,
        zero_origin=None,
        parents=(),
        reaches_loss=candidate.loss is not None and not is_finite(candidate.loss),
        reaches_gradients=tuple(p.name for p in candidate.parameters if p.nan or p.inf),
        path=(),
        absorbed_at=None,
    )

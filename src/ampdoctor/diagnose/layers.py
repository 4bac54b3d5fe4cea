"""The per-layer table: what each module's own ops made, forward and backward, in its worst batch."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ampdoctor.diagnose.headroom import LOW_PRECISION, headroom_bits
from ampdoctor.diagnose.masks import is_mask
from ampdoctor.diagnose.outcome import find_pass
from ampdoctor.diagnose.report import ForwardRange, GradientRange, LayerRow, ParameterRow
from ampdoctor.diagnose.standing import FAULT, SILENT
from ampdoctor.diagnose.verdict import Reading
from ampdoctor.facts.floats import FLOAT_FORMATS
from ampdoctor.facts.site import Site
from ampdoctor.facts.trace import Pass, SiteRecord, Trace
from ampdoctor.facts.words import Phase, Verdict
from ampdoctor.scales.gradient_harm import lost_fraction, without_noise

_OF_BACKWARD: frozenset[Verdict] = frozenset(
    ("backward-undefined", "no-workable-scale", "backward-overflow", "gradient-underflow")
)
"""Verdicts that are about gradients."""


def layer_rows(reading: Reading) -> tuple[LayerRow, ...]:
    """One row per module that made a tensor: the fault's, then the worst in what the verdict is about."""
    trace = reading.trace
    forward: dict[str, list[ForwardRange]] = defaultdict(list)
    gradient: dict[str, list[GradientRange]] = defaultdict(list)
    for candidate in _candidates(trace):
        reference = find_pass(trace, "reference", candidate.batch)
        twins = {r.site: r for r in reference.sites} if reference else {}
        for module, records in _by_module(candidate, "forward").items():
            forward[module].append(_forward(records))
        for module, records in _by_module(candidate, "backward").items():
            gradient[module].append(_gradient(records, twins, candidate.loss_scale))
    born = {
        j.birth.site.module: j.birth.value
        for j in reversed(reading.births)
        if j.standing in (FAULT, SILENT) and j.birth.site is not None and j.phase == "forward"
    }
    rows = [
        LayerRow(
            m.path,
            m.type,
            m.calls,
            max(forward.get(m.path, ()), key=_forward_badness, default=None),
            max(gradient.get(m.path, ()), key=_gradient_badness, default=None),
            position,
            born.get(m.path, ""),
        )
        for position, m in enumerate(trace.modules)
        if m.path in forward or m.path in gradient
    ]
    badness = _backward_badness if reading.verdict in _OF_BACKWARD else _row_badness
    origin = reading.basis.birth.site.module if reading.basis and reading.basis.birth.site else None
    return tuple(sorted(rows, key=lambda row: (row.module == origin, badness(row)), reverse=True))


def parameter_rows(trace: Trace) -> tuple[ParameterRow, ...]:
    """One row per parameter, from the batch in which it loses most."""
    worst: dict[str, ParameterRow] = {}
    for candidate in _candidates(trace):
        made = {r.parameter: r for r in candidate.sites if r.parameter}
        heard = {p.name for p in without_noise(candidate.parameters)}
        for p in candidate.parameters:
            record = made.get(p.name)
            flushed = record.stats.flushed if record else None
            share = flushed / p.reference_nonzero if flushed is not None and p.reference_nonzero else None
            noise = p.name not in heard
            row = ParameterRow(p.name, p.absmax, share, lost_fraction(p), p.relative_error, noise)
            known = worst.get(p.name)
            if known is None or (row.lost_fraction or 0.0) > (known.lost_fraction or 0.0):
                worst[p.name] = row
    return tuple(worst.values())


def _candidates(trace: Trace) -> list[Pass]:
    """The candidate pass of each batch, at the configured scale where there are several."""
    batches = dict.fromkeys(p.batch for p in trace.passes if p.role == "candidate")
    found = [find_pass(trace, "candidate", batch, trace.loss_scale) for batch in batches]
    return [p for p in found if p is not None]


def _by_module(one_pass: Pass, phase: Phase) -> Mapping[str, list[SiteRecord]]:
    groups: dict[str, list[SiteRecord]] = defaultdict(list)
    for record in one_pass.sites:
        if record.site.phase == phase and not record.recomputed:
            groups[record.site.module].append(record)
    return groups


def _forward(records: Sequence[SiteRecord]) -> ForwardRange:
    """The range of the low-precision tensors, masks left out; of all of them where there is none of those."""
    low = [r for r in records if r.stats.dtype in LOW_PRECISION]
    shown = [r for r in low if not is_mask(r)] or [r for r in records if not is_mask(r)] or records
    bits = [b for r in shown if (b := headroom_bits(r.stats.absmax, r.stats.dtype)) is not None]
    return ForwardRange(
        _least(r.stats.min for r in shown),
        _negative(_least(_negative(r.stats.max) for r in shown)),
        max((r.stats.absmax for r in shown if r.stats.absmax is not None), default=None),
        min(bits, default=None),
        sum(r.stats.nan for r in records),
        sum(r.stats.inf for r in records),
    )


def _least(values: Iterable[float | None]) -> float | None:
    """The smallest; NaN if one is, None if there is none."""
    known = [v for v in values if v is not None]
    return math.nan if any(math.isnan(v) for v in known) else min(known, default=None)


def _negative(value: float | None) -> float | None:
    return None if value is None else -value


def _gradient(records: Sequence[SiteRecord], twins: Mapping[Site, SiteRecord], scale: float) -> GradientRange:
    """The module's backward; shares are of the low-precision tensors, and say nothing once some are NaN."""
    absmax = max((r.stats.absmax for r in records if r.stats.absmax is not None), default=None)
    nan = sum(r.stats.nan for r in records)
    low = [r for r in records if r.stats.dtype in LOW_PRECISION]
    zeroed = total = subnormal = 0
    for r in low:
        if r.stats.flushed is not None:
            subnormal += r.stats.histogram.subnormal(FLOAT_FORMATS[r.stats.dtype])
            # A cast has no twin in the FP32 pass, and routing may give a site other elements there: what was
            # nonzero before the rounding counts.
            twin = twins.get(r.site)
            paired = twin is not None and twin.stats.numel == r.stats.numel
            before = _nonzero(twin) if twin is not None and paired else _nonzero(r) + r.stats.flushed
            total += before
            zeroed += max(0, before - _nonzero(r))
    return GradientRange(
        absmax / scale if absmax is not None else None,
        zeroed / total if total and not nan else None,
        min(subnormal / total, 1.0) if total and not nan else None,
        nan,
        sum(r.stats.inf for r in records),
    )


def _nonzero(record: SiteRecord) -> int:
    return record.stats.nonzero


def _forward_badness(row: ForwardRange) -> tuple[int, float]:
    return row.nan + row.inf, -_or(row.headroom_bits, math.inf)


def _gradient_badness(row: GradientRange) -> tuple[int, float]:
    return row.nan + row.inf, _or(row.underflow_fraction, -1.0)


def _row_badness(row: LayerRow) -> tuple[bool, float, float]:
    """Born here first, then the least headroom, then the most gradient lost."""
    headroom = _or(row.forward.headroom_bits, math.inf) if row.forward else math.inf
    underflow = _or(row.gradient.underflow_fraction, 0.0) if row.gradient else 0.0
    return bool(row.born), -headroom, underflow


def _backward_badness(row: LayerRow) -> tuple[bool, float, float]:
    """Non-finite gradients first, then the most gradient lost, then the largest gradient."""
    if row.gradient is None:
        return False, -1.0, -1.0
    spoiled = row.gradient.nan + row.gradient.inf > 0
    return spoiled, _or(row.gradient.underflow_fraction, 0.0), _or(row.gradient.absmax, 0.0)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value

"""The run-up: the last modules before the first fault, and how their values grew."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ampdoctor.diagnose.cause import RANGE
from ampdoctor.diagnose.headroom import headroom_bits
from ampdoctor.diagnose.masks import is_mask
from ampdoctor.diagnose.outcome import find_pass
from ampdoctor.diagnose.report import RunUpRow
from ampdoctor.diagnose.standing import JudgedBirth
from ampdoctor.diagnose.verdict import Reading
from ampdoctor.facts.trace import Pass, SiteRecord

_ROWS_BEFORE = 4
"""Modules shown before the fault: where the growth began, at a glance."""
_CASTS = ("aten::_to_copy", "aten::clone", "aten::copy_")


@dataclass(frozen=True)
class _Stretch:
    """Ops in a row made by one module: the loudest of them stands for it."""

    module: str
    loudest: SiteRecord


def run_up(reading: Reading) -> tuple[RunUpRow, ...]:
    """The rows, last one the fault itself; empty for a fault whose size is not the matter.

    Only for values that left the range: a division by zero has no growth that leads to it.
    """
    fault = reading.basis
    if fault is None or fault.birth.site is None or fault.cause != RANGE:
        return ()
    birth, site = fault.birth, fault.birth.site
    found = find_pass(reading.trace, "candidate", birth.batch, birth.loss_scale)
    if found is None or (fault.phase == "backward" and found.loss_scale != birth.loss_scale):
        return ()
    before = list(_stretches(_records_before(found, fault)))[-_ROWS_BEFORE:]
    rows: list[RunUpRow] = []
    for stretch in before:
        stats = stretch.loudest.stats
        rows.append(_row(stretch.module, stretch.loudest.site.op, stats.absmax, stats.dtype, rows))
    last = _row(site.module, site.op, _size(fault), birth.dtype, rows, here=True)
    return (*rows, last)


def _records_before(one_pass: Pass, fault: JudgedBirth) -> Iterator[SiteRecord]:
    """The candidate's tensors of the same phase made before the fault, those that show its growth."""
    site = fault.birth.site
    if site is None:
        return
    for record in sorted(one_pass.sites, key=lambda r: r.order):
        if record.site.key == site.key:
            return
        useful = record.site.phase == site.phase and record.site.op not in _CASTS and not record.recomputed
        if useful and record.stats.absmax and not is_mask(record):
            yield record


def _stretches(records: Iterable[SiteRecord]) -> Iterator[_Stretch]:
    current: _Stretch | None = None
    for record in records:
        if current is None or current.module != record.site.module:
            if current is not None:
                yield current
            current = _Stretch(record.site.module, record)
        elif (record.stats.absmax or 0.0) > (current.loudest.stats.absmax or 0.0):
            current = _Stretch(current.module, record)
    if current is not None:
        yield current


def _size(fault: JudgedBirth) -> float | None:
    exact = fault.birth.exact_value
    if exact is None:
        return abs(fault.birth.reference_value) if fault.birth.reference_value is not None else None
    return abs(exact)


def _row(
    module: str, op: str, absmax: float | None, dtype: str, before: list[RunUpRow], here: bool = False
) -> RunUpRow:
    previous = before[-1].absmax if before else None
    growth = absmax / previous if absmax is not None and previous else None
    return RunUpRow(module, op, absmax, headroom_bits(absmax, dtype), growth, here)

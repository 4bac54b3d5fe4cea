"""Which op ran in which dtype, by module, and what the casts move that autocast puts in."""

from __future__ import annotations

from collections import defaultdict

from ampdoctor.diagnose.outcome import find_pass
from ampdoctor.diagnose.report import OpRow
from ampdoctor.facts.trace import SiteRecord, Trace
from ampdoctor.facts.words import Phase

CAST_BYTES = 2 + 4
"""Per element: autocast converts between FP32 and a format of 16 bits, reads one and writes the other."""


def op_rows(trace: Trace) -> tuple[OpRow, ...]:
    """A row per module, phase, op and dtype of the first batch's pass, in the order of their first run.

    The dtype is that of the result. Ops that make no floating-point tensor of their own (views) have no row.
    """
    batch = next((p.batch for p in trace.passes if p.role == "candidate"), None)
    seen = None if batch is None else find_pass(trace, "candidate", batch, trace.loss_scale)
    groups: dict[tuple[str, Phase, str, str, bool], list[SiteRecord]] = defaultdict(list)
    for record in sorted(seen.sites if seen else (), key=lambda r: r.order):
        site = record.site
        groups[site.module, site.phase, site.op, record.stats.dtype, record.implicit_cast].append(record)
    return tuple(
        OpRow(
            module,
            phase,
            op,
            dtype,
            len({(r.site.nth, r.recomputed) for r in records}),
            sum(r.stats.numel for r in records),
            cast,
            sum(r.stats.numel for r in records) * CAST_BYTES if cast else 0,
        )
        for (module, phase, op, dtype, cast), records in groups.items()
    )

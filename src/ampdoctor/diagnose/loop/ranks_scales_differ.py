"""AMP427: the ranks of a run hold different loss scales

What it means
    Each process has a GradScaler of its own, which skips a step and lowers
    its scale for what it finds in its own gradients. Where gradients are
    averaged over the ranks, sums of gradients at different scales are wrong
    by a power of two on every rank; and a rank that skips a step that others
    take has other weights from then on.

How it is found
    The first rank compares what each update of each rank's scaler left. The
    others pass it on through the store of the script's process group, when
    that or the script ends. The line is the first rank's.

What to do
    Let every rank judge the same gradients: average them before unscale_
    (DistributedDataParallel does so in backward). Where each rank holds a
    shard of the gradients, add found_inf up over the ranks: FSDP2's
    gradients do that, FSDP1 needs ShardedGradScaler. On resume, load the
    scaler's state on every rank.

When it is harmless
    The ranks train models that have nothing to do with each other.

Example
    scaler.unscale_(optimizer); all_reduce(p.grad); scaler.step(optimizer)

Sources
    The documentation of torch.distributed.fsdp.sharded_grad_scaler.
"""

from __future__ import annotations

from collections.abc import Iterable

from ampdoctor.diagnose.loop.rule import LoopRule, finding, of_kind, scale_words
from ampdoctor.diagnose.report import Finding
from ampdoctor.facts.loop import LoopTrace, RankScales

_REMEDY = (
    "Average gradients over the ranks before scaler.unscale_(optimizer), as DistributedDataParallel does; "
    "where ranks hold shards, use a scaler that adds found_inf up over them (ShardedGradScaler); "
    "load its state on every rank."
)


def check(trace: LoopTrace) -> Iterable[Finding]:
    """One finding for each scaler whose scale is not the same on all ranks after some update."""
    for scaler in dict.fromkeys(scales.scaler for scales in trace.ranks):
        ranks = [scales for scales in trace.ranks if scales.scaler == scaler]
        updates = [e for e in of_kind(trace, "update") if e.scale_after is not None]
        numbers = list(dict.fromkeys(e.scaler for e in updates))[scaler:]
        events = [e for e in updates if e.scaler in numbers[:1]]
        at = _first_apart(ranks)
        if at is None or at >= len(events):
            continue
        event = events[at]
        held = {scales.rank: _after(scales, at) for scales in ranks if at < scales.updates}
        message = f"After the update of step {event.step:,} the scale is {_words(held)}."
        yield finding(
            CODE, TITLE, "warning", event.source, message, _REMEDY,
            {"step": event.step, "scales": {str(rank): value for rank, value in held.items()}},
        )  # fmt: skip


def _first_apart(ranks: list[RankScales]) -> int | None:
    """The first update after which two ranks differ; None where all that is known agrees."""
    for at in sorted({at for scales in ranks for at, _ in scales.changes}):
        if len({_after(scales, at) for scales in ranks if at < scales.updates}) > 1:
            return at
    return None


def _after(scales: RankScales, at: int) -> float:
    return [value for changed, value in scales.changes if changed <= at][-1]


def _words(held: dict[int, float]) -> str:
    """``2^15 on rank 1, and 2^16 on ranks 0, 2``."""
    by_scale: dict[float, list[str]] = {}
    for rank, value in held.items():
        by_scale.setdefault(value, []).append(str(rank))
    parts = [
        f"{scale_words(value)} on {'rank' if len(ranks) == 1 else 'ranks'} {', '.join(ranks)}"
        for value, ranks in sorted(by_scale.items())
    ]
    return f"{', '.join(parts[:-1])}, and {parts[-1]}"


CODE, TITLE = "AMP427", "the ranks of a run hold different loss scales"
RULE = LoopRule(CODE, TITLE, "warning", __doc__ or "", check)

"""The loss scales of a run's ranks, side by side: passed on through the store of the script's process group.

No collective is called, since one that a rank does not reach never ends. Each rank leaves its scales under a
key of ours when its process group, or the script, ends; the first rank asks the others' for a few seconds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

import torch.distributed as dist

from ampdoctor.facts.loop import RankScales
from ampdoctor.live.around import Around
from ampdoctor.live.recorder import Draft

_PATIENCE = 5.0
"""Seconds that the first rank waits for the others: ranks of one script end together, but for the step that
one of them has examined."""
_PAUSE = 0.02
"""Seconds between two questions, each over at once: the store serves the script's own threads too."""
_MOST_CHANGES = 1000
"""Changes of a scale that are passed on, from the first: about 20 kB."""


class Ranks:
    """What the ranks told of their scales, and who of them did not."""

    def __init__(self, around: Around) -> None:
        self.around = around
        self.scales: tuple[RankScales, ...] = ()
        """Of all ranks, as far as they answered; on the first rank only."""
        self.not_seen: tuple[str, ...] = ()
        self._groups = 0
        """Process groups that have ended: a store may outlive them, with the keys of each."""

    def destroy(self, original: Any) -> Any:
        """The wrapper for ``destroy_process_group``: with the whole group goes its store."""

        def destroy_process_group(group: Any = None) -> Any:
            if not self.around.off and (group is None or group is dist.group.WORLD):
                self.exchange()
            return original(group)

        return destroy_process_group

    def exchange(self, patience: float = _PATIENCE) -> None:
        """Nothing; this rank has left its scales for the first, or the first has waited for the others'."""
        if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() < 2:
            return
        recorder = self.around.recorder
        recorder.read()
        rank, size = dist.get_rank(), dist.get_world_size()
        own = _scales_of(rank, recorder.drafts)
        key = f"ampdoctor/scales/{self._groups}/"
        self._groups += 1
        store = dist.distributed_c10d._get_default_store()
        try:
            if rank:
                store.set(f"{key}{rank}", json.dumps([[s.scaler, s.updates, s.changes] for s in own]))
                return
            told = _answers(store, key, range(1, size), patience)
        except RuntimeError as error:  # the process that served the store is gone
            self.not_seen = (f"the loss scales of other ranks ({str(error).splitlines()[0]})",)
            return
        theirs = (_read(other, text) for other, text in sorted(told.items()))
        self.scales = (*own, *(scales for of_one in theirs for scales in of_one))
        silent = [str(other) for other in range(1, size) if other not in told]
        ranks = "rank" if len(silent) == 1 else "ranks"
        self.not_seen = (
            (f"the loss scales of {ranks} {', '.join(silent)} (no answer in {patience:g} s)",)
            if silent
            else ()
        )


def _answers(store: Any, key: str, ranks: Iterable[int], patience: float) -> dict[int, bytes]:
    """What each rank left under the key, by rank; those that left nothing in time are missing."""
    until = time.monotonic() + patience
    waiting, told = list(ranks), {}
    while waiting:
        for rank in list(waiting):
            if store.check([f"{key}{rank}"]):
                told[rank] = store.get(f"{key}{rank}")
                waiting.remove(rank)
        if not waiting or time.monotonic() >= until:
            break
        time.sleep(_PAUSE)
    return told


def _scales_of(rank: int, drafts: Iterable[Draft]) -> list[RankScales]:
    """For each scaler, in the order of their first updates: what its updates left."""
    updates: dict[int, list[float]] = {}
    for draft in drafts:
        if draft["kind"] == "update" and draft.get("scale_after") is not None:
            updates.setdefault(draft["scaler"], []).append(float(draft["scale_after"]))
    found = []
    for scaler, scales in enumerate(updates.values()):
        changes = [(at, s) for at, s in enumerate(scales) if not at or s != scales[at - 1]]
        # past the changes that are passed on nothing is claimed
        known = changes[_MOST_CHANGES][0] if len(changes) > _MOST_CHANGES else len(scales)
        found.append(RankScales(rank, scaler, known, tuple(changes[:_MOST_CHANGES])))
    return found


def _read(rank: int, text: bytes) -> list[RankScales]:
    return [
        RankScales(rank, scaler, updates, tuple((at, scale) for at, scale in changes))
        for scaler, updates, changes in json.loads(text)
    ]

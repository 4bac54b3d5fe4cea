"""Delta debugging: a smallest part of a list that still does it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def ddmin(items: Sequence[T], holds: Callable[[Sequence[T]], bool]) -> list[T]:
    """A part of ``items`` that holds and of which no single item can be left out, in the order of ``items``.

    ``items`` themselves hold. One culprit among n is found in about 2 log2 n calls; what comes first is left
    out last, where there is a choice. (Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing
    Input, 2002.)
    """
    kept = list(items)
    if holds([]):
        return []
    parts = 2
    while len(kept) > 1:
        size = -(-len(kept) // parts)
        chunks = [kept[start : start + size] for start in range(0, len(kept), size)]
        smaller = next((chunk for chunk in chunks if len(chunk) < len(kept) and holds(chunk)), None)
        if smaller is not None:
            kept, parts = smaller, 2
            continue
        rests = ([i for i in kept if i not in chunk] for chunk in reversed(chunks)) if len(chunks) > 2 else ()
        rest = next((rest for rest in rests if holds(rest)), None)
        if rest is not None:
            kept, parts = rest, max(len(chunks) - 1, 2)
        elif size == 1:
            break
        else:
            parts = min(2 * len(chunks), len(kept))
    return kept

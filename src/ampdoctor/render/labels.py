"""Names of layers in a few columns, still told apart from each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import takewhile

from ampdoctor.render.words import plain


def labels(names: Sequence[str], types: Sequence[str], width: int, dots: str) -> list[str]:
    """A label of at most ``width`` columns per name.

    The name with its class, or without it, where that fits. Else what all long names begin with is left out,
    and of what is still too long the middle: the first part says which of many equal layers it is.
    """
    names = [plain(name) for name in names]
    prefix = _common([name for name in names if len(name) > width])
    labels = []
    for name, kind in zip(names, types, strict=True):
        full = f"{name} {kind}".rstrip()
        label = next((text for text in (full, name) if len(text) <= width), "")
        labels.append(label or _cut(dots + name[len(prefix) :] if prefix else name, width, dots))
    return _told_apart(labels)


def _told_apart(labels: list[str]) -> list[str]:
    """The same, those that look alike with a number at their end."""
    seen: Counter[str] = Counter()
    counts = Counter(labels)
    told = []
    for label in labels:
        seen[label] += 1
        mark = f"#{seen[label]}" if counts[label] > 1 else ""
        told.append(label[: len(label) - len(mark)] + mark)
    return told


def _common(names: Sequence[str]) -> str:
    """The dotted beginning that all of several names share, its last dot included."""
    if len(names) < 2:
        return ""
    parents = [name.split(".")[:-1] for name in names]
    shared = takewhile(lambda level: len(set(level)) == 1, zip(*parents, strict=False))
    return "".join(f"{level[0]}." for level in shared)


def _cut(text: str, width: int, dots: str) -> str:
    """The text without its middle: the first dotted part stays, and the end."""
    if len(text) <= width:
        return text
    # the dots that stand for a prefix hold no name: look for the first part behind them
    start = len(dots) if text.startswith(dots) else 0
    head = text[: text.find(".", start) + 1]
    if len(head) + len(dots) > width // 2:
        head = ""
    return head + dots + text[len(text) - width + len(head) + len(dots) :]

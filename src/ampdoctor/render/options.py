"""How to draw: what a terminal is able to show, and how much of it to fill."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ampdoctor.facts.excerpt import Excerpt
from ampdoctor.facts.site import Source


def no_excerpt(source: Source) -> Excerpt | None:
    """None: rendering opens no file, whoever asks for a report may."""
    return None


@dataclass(frozen=True)
class Options:
    """Settings that a format may use; every format can do without."""

    width: int = 80
    """Columns."""
    color: bool = False
    """Write ANSI colours."""
    unicode: bool = True
    """The output can show more than ASCII."""
    all_layers: bool = False
    """Every layer, in the model's own order, instead of the worst few."""
    ops: bool = False
    """Every op with its dtype, in formats that are short without."""
    base: str = ""
    """Folder that source paths are shown relative to; '' shows the file's name alone."""
    root: str = ""
    """The repository's root: annotations and SARIF name files from there; '' stands for ``base``."""
    excerpt: Callable[[Source], Excerpt | None] = no_excerpt
    """The code around a line of the user's; None where it cannot be shown."""

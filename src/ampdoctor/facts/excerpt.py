"""The lines of the user's program around one of them, for reports that show code."""

from __future__ import annotations

import linecache
import textwrap
from dataclasses import dataclass

from ampdoctor.facts.site import Source

_AROUND = 3
"""Lines before and after: a branch or a call with its arguments, and still a glance."""


@dataclass(frozen=True)
class Excerpt:
    """Some lines in a row of one file."""

    first: int
    """Number of the first line, from 1."""
    lines: tuple[str, ...]
    """Without the indentation that they have in common, and without line ends."""


def read_excerpt(source: Source) -> Excerpt | None:
    """The lines as the file, or the notebook's cell, has them now.

    None where it cannot be read, or holds another text at that line than the one that ran: a trace may be
    read on another machine, and after an edit.
    """
    linecache.checkcache(source.file)
    lines = linecache.getlines(source.file)
    if not source.text or not 1 <= source.line <= len(lines) or lines[source.line - 1].strip() != source.text:
        return None
    at = source.line - 1
    first, end = max(at - _AROUND, 0), min(at + _AROUND + 1, len(lines))
    # what stands at the margin above or below a line that does not begins other code
    if _indented(lines[at]):
        first = max((i for i in range(first, at) if not _indented(lines[i])), default=first)
        end = min((i for i in range(at + 1, end) if not _indented(lines[i])), default=end)
    shown = textwrap.dedent("".join(lines[first:end]).expandtabs(4)).rstrip().split("\n")
    while not shown[0]:
        shown, first = shown[1:], first + 1
    return Excerpt(first + 1, tuple(shown))


def _indented(line: str) -> bool:
    return not line.strip() or line[0].isspace()

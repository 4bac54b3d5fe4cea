"""A rule's page as sections, paragraphs and numbered lists, for formats that have those."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from itertools import groupby

_NUMBERED = re.compile(r"\d+\. ")


@dataclass(frozen=True)
class Block:
    """A paragraph, or a numbered list."""

    numbered: bool
    texts: tuple[str, ...]
    """The paragraph, or one text per item."""


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it."""

    heading: str
    blocks: tuple[Block, ...]


def sections(page: str) -> tuple[Section, ...]:
    """The sections of a page that has headings at the margin and their text indented; without its title."""
    found: list[tuple[str, list[str]]] = []
    for line in page.strip().splitlines()[1:]:
        if line and not line[0].isspace():
            found.append((line, []))
        elif found:
            found[-1][1].append(line)
    return tuple(Section(heading, _blocks(textwrap.dedent("\n".join(body)))) for heading, body in found)


def _blocks(body: str) -> tuple[Block, ...]:
    return tuple(
        _block(list(lines))
        for paragraph in re.split(r"\n\s*\n", body.strip())
        for _, lines in groupby(paragraph.splitlines(), key=_in_list)
    )


def _in_list(line: str) -> bool:
    """An item's first line, or one that goes on under it."""
    return line.startswith(" ") or _NUMBERED.match(line) is not None


def _block(lines: list[str]) -> Block:
    if not _NUMBERED.match(lines[0]):
        return Block(False, (_flowing(lines),))
    starts = [i for i, line in enumerate(lines) if _NUMBERED.match(line)]
    items = [lines[start:end] for start, end in zip(starts, [*starts[1:], len(lines)], strict=True)]
    return Block(True, tuple(_NUMBERED.sub("", _flowing(item), count=1) for item in items))


def _flowing(lines: list[str]) -> str:
    return " ".join(line.strip() for line in lines)

"""User strings as Markdown that shows them as they are: nothing in a name or a message acts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ampdoctor.render.words import plain

_INLINE = re.compile(r"([\\`*_\[\]|~$])")
_LINE_START = re.compile(r"^(#|[-+=](?=\s|$|[-=])|\d+(?=[.)](\s|$)))")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def escaped(text: str) -> str:
    """The text on one line, with every character that Markdown or HTML would act on made literal."""
    text = re.sub(r"[&<>]", lambda match: _ENTITIES[match[0]], plain(text))
    return _LINE_START.sub(_literal, _INLINE.sub(r"\\\1", text))


def _literal(match: re.Match[str]) -> str:
    start = match[0]
    return f"&#{ord(start[0])};{start[1:]}"


def code(text: str) -> str:
    """The text in backticks: more of them than it holds itself; '' for no text."""
    text = plain(text)
    if not text:
        return ""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def cell_code(text: str) -> str:
    """The text in backticks for a cell of a table, where a bar in code still ends the cell."""
    return code(text).replace("|", "\\|")


def table(header: Sequence[str], rows: Iterable[Sequence[str]], align: str) -> list[str]:
    """The lines of a table; ``align`` has a letter per column: l or r."""
    rule = ["---:" if letter == "r" else "---" for letter in align]
    return [_row(header), _row(rule), *(_row(row) for row in rows)]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"

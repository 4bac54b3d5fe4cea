"""Text for people: user strings made harmless, long paths made short."""

from __future__ import annotations

from pathlib import PurePath

from rich.text import Text

from ampdoctor.diagnose.headline import Headline
from ampdoctor.facts.site import Source
from ampdoctor.render.options import Options


def plain(text: str) -> str:
    """The string with whatever a terminal would act on (escapes, newlines, tabs) written out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def words(*parts: str | tuple[str, str], style: str = "") -> Text:
    """One line of literal text; a pair is (text, style). ``[red]`` in a module's name stays what it is."""
    line = Text(style=style, overflow="fold")
    for part in parts:
        if isinstance(part, tuple):
            line.append(plain(part[0]), part[1])
        else:
            line.append(plain(part))
    return line


def apart(*parts: Text, room: int) -> Text:
    """The parts on one line, set apart by blanks; those after the first on lines of their own where that is
    wider than ``room`` columns."""
    line = Text("   ").join(parts)
    return line if line.cell_len < room else Text("\n  ").join(parts)


def headline_words(headline: Headline, style: str) -> Text:
    """The sentence, its head in this style."""
    return words((headline.head, style), " " if headline.rest else "", headline.rest)


def source_path(source: Source, options: Options) -> str:
    """``models/t5.py:33``: relative to the base where the file lies in it, else the file's name alone."""
    file = PurePath(source.file)
    if options.base and file.is_relative_to(options.base):
        return f"{file.relative_to(options.base)}:{source.line}"
    return f"{file.name}:{source.line}"


def shortened(name: str, width: int, options: Options) -> str:
    """The name in at most ``width`` columns: its end, which tells modules apart, stays."""
    name = plain(name)
    dots = "…" if options.unicode else "..."
    return name if len(name) <= width else dots + name[len(name) - width + len(dots) :]

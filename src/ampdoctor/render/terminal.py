"""From something rich can print to a string, for a terminal or for a pipe."""

from __future__ import annotations

import io

from rich.console import Console, RenderableType

from ampdoctor.render.options import Options


def as_text(document: RenderableType, options: Options) -> str:
    """The document as lines of at most ``options.width`` columns, with a newline at its end."""
    console = Console(
        file=io.StringIO(),
        width=options.width,
        force_terminal=options.color,
        color_system="standard" if options.color else None,
        legacy_windows=False,
        no_color=not options.color,
        highlight=False,
        markup=False,
        emoji=False,
    )
    with console.capture() as capture:
        console.print(document)
    text = "\n".join(line.rstrip() for line in capture.get().split("\n"))
    return text if options.unicode else text.encode("ascii", "backslashreplace").decode("ascii")

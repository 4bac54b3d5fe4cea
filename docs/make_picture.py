"""Draws the README's picture: a real scan of a config, exported as SVG. ``make picture`` runs it."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME

from ampdoctor.config import load_config
from ampdoctor.diagnose.engine import diagnose
from ampdoctor.load import load
from ampdoctor.probe.plan import Plan
from ampdoctor.probe.session import probe
from ampdoctor.render.options import Options
from ampdoctor.render.text import document

WEB_FONT = re.compile(r"@font-face \{.*?\}", re.DOTALL)
"""rich asks a server for its font; the picture does without."""


def picture(config: Path) -> str:
    """The report on a config, as it looks in a terminal, as SVG."""
    settings = load_config(config)
    precision = settings.precision
    plan = Plan(
        precision.mode,
        precision.dtype,
        "cpu",
        precision.emulate,
        precision.loss_scale,
        settings.seed,
    )
    report = diagnose(probe(load(settings), plan))
    console = Console(record=True, width=80, file=io.StringIO(), highlight=False, force_terminal=True)
    console.print(document(report, Options(color=True)))
    svg = console.export_svg(title=f"ampdoctor scan {config}", theme=SVG_EXPORT_THEME)
    # Some viewers drop the blanks at the start of a piece of text, which keep the columns apart.
    return WEB_FONT.sub("", svg).replace("<svg ", '<svg xml:space="preserve" ', 1)


if __name__ == "__main__":
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    target.write_text(picture(source))

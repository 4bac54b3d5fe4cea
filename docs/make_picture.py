"""Draws the README's pictures: real runs of sample configs, exported as SVG. ``make picture`` runs it."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console, RenderableType
from rich.terminal_theme import SVG_EXPORT_THEME

from ampdoctor.api.request import plan_of
from ampdoctor.config import load_config
from ampdoctor.diagnose.engine import DEFAULT_POLICY, diagnose
from ampdoctor.diagnose.report import Report
from ampdoctor.facts.trace import Trace
from ampdoctor.load import load
from ampdoctor.probe.scan import probe
from ampdoctor.render.gradients import Page, sweep, text
from ampdoctor.render.gradients.page import exponent_of_power
from ampdoctor.render.options import Options
from ampdoctor.render.text import document
from ampdoctor.scales.gradient_view import view_gradients
from ampdoctor.scales.reading import read_scales

SAMPLES = Path("sample_configs")
OVERFLOW, UNDERFLOW, HEALTHY = (
    SAMPLES / f"{n}.yaml" for n in ("t5_ffn_overflow", "gradient_underflow", "healthy")
)
OPTIONS = Options(color=True)
WEB_FONT = re.compile(r"@font-face \{.*?\}", re.DOTALL)
"""rich asks a server for its font; the pictures do without."""


def scanned(config: Path) -> tuple[Trace, Report]:
    """What a scan of the config sees and says."""
    settings = load_config(config, ["precision.device=cpu"])
    trace = probe(load(settings), plan_of(settings))
    return trace, diagnose(trace)


def gradients(config: Path, is_sweep: bool) -> Page:
    """The gradients at the configured scale."""
    trace, report = scanned(config)
    scale = trace.environment.loss_scale
    limit, margin = DEFAULT_POLICY.gradient_underflow, DEFAULT_POLICY.scale_margin_bits
    reading = read_scales(trace, limit, margin)
    assert reading is not None
    return Page(
        view=view_gradients(trace, reading, exponent_of_power(scale)),
        report=report,
        wanted=scale,
        sweep=is_sweep,
        top=8,
        underflow_limit=limit,
        margin_bits=margin,
        again=f"ampdoctor grad-histogram {config}",
        scan=f"ampdoctor scan {config}",
        types={m.path: m.type for m in trace.modules},
    )


def terminal(content: RenderableType, command: str) -> str:
    """The content as it looks in a terminal, as SVG, under the command that shows it."""
    console = Console(record=True, width=80, file=io.StringIO(), highlight=False, force_terminal=True)
    console.print(content)
    svg = console.export_svg(title=command, theme=SVG_EXPORT_THEME)
    # Some viewers drop the blanks at the start of a piece of text, which keep the columns apart.
    return WEB_FONT.sub("", svg).replace("<svg ", '<svg xml:space="preserve" ', 1)


def pictures() -> dict[str, str]:
    """File name -> SVG."""
    report = scanned(OVERFLOW)[1]
    histogram, every_scale = gradients(UNDERFLOW, False), gradients(HEALTHY, True)
    return {
        "report.svg": terminal(document(report, OPTIONS), f"ampdoctor scan {OVERFLOW}"),
        "gradients.svg": terminal(text.document(histogram, OPTIONS), histogram.again),
        "sweep.svg": terminal(sweep.sweep_document(every_scale, OPTIONS), f"{every_scale.again} --sweep"),
    }


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for name, svg in pictures().items():
        (folder / name).write_text(svg)

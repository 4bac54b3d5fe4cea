"""Where gradients lie in a format's range, drawn and as data."""

from __future__ import annotations

from ampdoctor.render.gradients import sweep, text
from ampdoctor.render.gradients.data import render_csv, render_json
from ampdoctor.render.gradients.page import Page
from ampdoctor.render.options import Options


def render_text(page: Page, options: Options) -> str:
    """At one loss scale, or at every one."""
    return sweep.render_sweep(page, options) if page.sweep else text.render(page, options)


__all__ = ["Page", "render_csv", "render_json", "render_text"]

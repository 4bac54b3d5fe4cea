"""Where gradients lie in a format's range, drawn and as data: one file per kind of output, listed by hand."""

from __future__ import annotations

from collections.abc import Callable

from ampdoctor.render.gradients import data, sweep, text
from ampdoctor.render.gradients.page import Page
from ampdoctor.render.options import Options


def _render_text(page: Page, options: Options) -> str:
    return sweep.render_sweep(page, options) if page.sweep else text.render(page, options)


FORMATS: dict[str, Callable[[Page, Options], str]] = {
    "text": _render_text,
    "json": data.render_json,
    "csv": data.render_csv,
}

__all__ = ["FORMATS", "Page"]

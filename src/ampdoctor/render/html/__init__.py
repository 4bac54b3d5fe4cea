"""The report as one HTML file that needs nothing else, and as a fragment for a notebook."""

from __future__ import annotations

from ampdoctor.render.html.page import fragment, render, render_many, render_run

__all__ = ["fragment", "render", "render_many", "render_run"]

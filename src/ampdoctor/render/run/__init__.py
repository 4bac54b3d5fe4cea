"""What was found in a script that ran."""

from ampdoctor.render.run.data import render as render_json
from ampdoctor.render.run.text import render as render_text

__all__ = ["render_json", "render_text"]

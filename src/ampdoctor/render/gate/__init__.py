"""What a gate says about one config or several, in words of its own."""

from ampdoctor.render.gate.data import render as render_json
from ampdoctor.render.gate.text import render as render_text

__all__ = ["render_json", "render_text"]

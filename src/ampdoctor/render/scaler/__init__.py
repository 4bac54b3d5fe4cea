"""What a loss scaler did."""

from ampdoctor.render.scaler.data import render as render_json
from ampdoctor.render.scaler.text import render as render_text

__all__ = ["render_json", "render_text"]

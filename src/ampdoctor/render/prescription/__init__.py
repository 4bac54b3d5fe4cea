"""The treatments that were found."""

from ampdoctor.render.prescription.data import render as render_json
from ampdoctor.render.prescription.text import render as render_text

__all__ = ["render_json", "render_text"]

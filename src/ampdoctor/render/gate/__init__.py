"""What a gate says about one config or several: one file per format of its own, listed by hand.

The other formats are those of any report; a judged report shows in them as what it is.
"""

from __future__ import annotations

from ampdoctor.render import MANY, RenderMany
from ampdoctor.render.gate import data, text

FORMATS: dict[str, RenderMany] = {**MANY, "text": text.render, "json": data.render}

__all__ = ["FORMATS"]

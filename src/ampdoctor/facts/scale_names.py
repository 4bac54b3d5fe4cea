"""A loss scale as people write it: on a command line, in a config."""

from __future__ import annotations

import math
import re


def scale_named(text: str) -> float:
    """The number that ``1024``, ``65,536``, ``1e4`` or ``2^10`` names; NaN for any other text."""
    power = re.fullmatch(r"2(?:\^|\*\*)([+-]?\d{1,4})", text.strip())
    try:
        return 2.0 ** int(power[1]) if power else float(text.replace(",", ""))
    except (ValueError, OverflowError):
        return math.nan

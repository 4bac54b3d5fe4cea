"""Bars and sparklines in characters, with eighths of a character where the output can show them."""

from __future__ import annotations

from collections.abc import Sequence

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_ASCII_SPARK = " .:-=+*%#"
_FULL = 8


def bar_rows(heights: Sequence[float], rows: int, unicode: bool, top: float = 0.0) -> list[str]:
    """Rows of characters, the top one first, one character per bar.

    The highest bar, or one of height ``top``, fills all rows; whatever is more than nothing can be seen.
    """
    top = max(top, max(heights, default=0.0))
    eighths = [_eighths(h, top, rows) for h in heights]
    lines = []
    for row in range(rows - 1, -1, -1):
        parts = [min(max(e - row * _FULL, 0), _FULL) for e in eighths]
        lines.append("".join(_EIGHTHS[p] if unicode else _ascii(p) for p in parts))
    return lines


def sparkline(heights: Sequence[float], unicode: bool) -> str:
    """One row of bars."""
    top = max(heights, default=0.0)
    symbols = _EIGHTHS if unicode else _ASCII_SPARK
    return "".join(symbols[_eighths(h, top, 1)] for h in heights)


def _eighths(height: float, top: float, rows: int) -> int:
    if height <= 0 or top <= 0:
        return 0
    return max(1, round(height / top * rows * _FULL))


def _ascii(eighths: int) -> str:
    return " " if eighths == 0 else "." if eighths < _FULL // 2 else "#"

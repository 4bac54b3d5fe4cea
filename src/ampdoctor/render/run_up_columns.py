"""The columns of the way to the first fault, for every format: what each is called, and what is in it."""

from __future__ import annotations

from ampdoctor.diagnose.report import RunUpRow
from ampdoctor.diagnose.wording import number

HEADS = ("Run-up", "absmax", "headroom", "growth")
_NOTABLE_GROWTH = 2.0
"""A module that makes its values larger by less is not on the way to anything."""


def cells(row: RunUpRow) -> tuple[str, str, str]:
    """The largest magnitude, the headroom left, and the growth against the row before where it is notable."""
    headroom = "" if row.headroom_bits is None else f"{row.headroom_bits:.1f} bits"
    grew = row.growth is not None and row.growth >= _NOTABLE_GROWTH
    return number(row.absmax), "none" if row.here else headroom, f"x{number(row.growth)}" if grew else ""

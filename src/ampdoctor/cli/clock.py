"""The clock: rules and the gate read none, a command hands them the day."""

from __future__ import annotations

import datetime


def today() -> str:
    """The day by this machine's clock, ``2027-01-31``."""
    return datetime.date.today().isoformat()

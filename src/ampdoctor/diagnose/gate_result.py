"""What a gate says about one report, and what it says about single findings, as plain data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ampdoctor.facts.site import Source
from ampdoctor.facts.words import AcceptedBy, GateStatus, Severity, WaiverUse

PASSED: Final = "passed"
FAILED: Final = "failed"
NOT_MEASURED: Final = "not-measured"
UNUSABLE: Final = "unusable"
EXIT_CODES: dict[GateStatus, int] = {PASSED: 0, FAILED: 1, NOT_MEASURED: 3, UNUSABLE: 2}
"""From the best to the worst: 1 promises that all was measured and judged, 3 that all could be loaded."""


@dataclass(frozen=True)
class Accepted:
    """Why a finding does not count. Its severity is info as long as it is accepted."""

    by: AcceptedBy
    severity: Severity
    """What it weighs where nobody accepts it."""
    reason: str = ""
    """The waiver's own words; '' for a baseline."""
    expires: str = ""
    """The waiver's last day, ``2027-01-31``; '' for none."""


@dataclass(frozen=True)
class WaiverState:
    """One waiver of the config, and whether it still does anything."""

    code: str
    """A rule's code or the beginning of codes."""
    module: str
    """A glob over module paths."""
    reason: str
    expires: str
    """``2027-01-31``, the last day it holds; '' for ever."""
    state: WaiverUse
    """``unused``: nothing matches it; ``expired``: what it matches counts again."""
    matches: int
    """Findings and failed checks that it fits."""


@dataclass(frozen=True)
class Check:
    """One thing that is not as the gate wants it."""

    name: str
    """``finding``; a limit's key, such as ``headroom_bits``; or what was compared with the baseline:
    ``headroom_loss``, ``underflow_gain``, ``worse``."""
    code: str
    """The rule that explains it."""
    title: str
    """A name for it: the rule's, or ``less headroom than the limit``."""
    module: str
    """'' for the whole scan; a glob for a limit that could not be checked."""
    op: str
    source: Source | None
    message: str
    """What is wrong, and by how much."""
    by: str
    """How much, in a few words: ``0.6 bits short``."""
    measured: float | None = None
    limit: float | None = None
    parameter: str = ""
    """The parameter, where the figure is one's own."""

    @property
    def subject(self) -> str:
        """The parameter or else the module."""
        return self.parameter or self.module


@dataclass(frozen=True)
class GateResult:
    """The gate's word on one report."""

    status: GateStatus
    """``not-measured``: nothing, or not what a limit asks for; ``unusable``: the config is wrong, or what it
    names cannot be loaded."""
    checks: tuple[Check, ...]
    """What failed, worst first; for ``not-measured`` what could not be checked."""
    accepted: int
    """Findings and failed checks that a waiver or the baseline accepts."""
    gone: tuple[str, ...]
    """What the baseline knows and this report has no more, a phrase each."""
    notes: tuple[str, ...]
    """What a reader should know besides, a sentence each."""
    baseline: str
    """The baseline's file; '' where nothing was compared."""
    reason: str = ""
    """Why nothing was measured; '' for a report that was judged."""


def worst_status(statuses: Iterable[GateStatus]) -> GateStatus:
    """The one that decides for several configs; ``not-measured`` for none."""
    ranks = list(EXIT_CODES)
    return max(statuses, key=ranks.index, default=NOT_MEASURED)

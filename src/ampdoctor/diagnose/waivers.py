"""Waivers: findings that somebody accepts, for a reason and mostly for a while."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from ampdoctor.diagnose.gate_result import Accepted, WaiverState
from ampdoctor.diagnose.report import Finding
from ampdoctor.facts.words import WaiverUse


@dataclass(frozen=True)
class Waiver:
    """As the config's ``rules.waivers`` gives it."""

    code: str
    """A rule's code, or the beginning of codes: AMP1 is every forward rule."""
    module: str
    """A glob over module paths."""
    reason: str
    expires: str = ""
    """The last day it holds, ``2027-01-31``; '' for ever."""

    def fits(self, code: str, module: str) -> bool:
        """True where it speaks of this rule in this module."""
        return code.startswith(self.code) and fnmatchcase(module, self.module)

    def has_expired(self, today: str) -> bool:
        """True from the day after ``expires`` on; never where no day is known (today is '')."""
        return bool(self.expires) and today > self.expires


def waive(findings: Sequence[Finding], waivers: Sequence[Waiver], today: str) -> list[Finding]:
    """The findings; those a waiver holds for weigh nothing, and say who accepted them."""
    return [_waived(finding, waivers, today) for finding in findings]


def waiver_states(findings: Sequence[Finding], waivers: Sequence[Waiver], today: str) -> list[WaiverState]:
    """Each waiver with what it still does for these findings, in the order of the config."""
    return [_state(w, sum(w.fits(f.code, f.module) for f in findings), today) for w in waivers]


def _waived(finding: Finding, waivers: Sequence[Waiver], today: str) -> Finding:
    fitting = [w for w in waivers if w.fits(finding.code, finding.module)]
    holding = next((w for w in fitting if not w.has_expired(today)), None)
    if holding is not None:
        accepted = Accepted("waiver", finding.severity, holding.reason, holding.expires)
        return replace(finding, severity="info", accepted=accepted)
    if fitting:
        return replace(finding, message=f"{finding.message} Its waiver expired on {fitting[0].expires}.")
    return finding


def _state(waiver: Waiver, matches: int, today: str) -> WaiverState:
    state: WaiverUse = "expired" if waiver.has_expired(today) else "used" if matches else "unused"
    return WaiverState(waiver.code, waiver.module, waiver.reason, waiver.expires, state, matches)

"""Findings in words: those that ask for action one by one, the others a line per rule."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from ampdoctor.diagnose.gate_result import Accepted, WaiverState
from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.wording import listing, place, source_place
from ampdoctor.render.words import words

_MOST = 10
_STYLES = {"error": "red", "warning": "yellow", "info": "dim"}


def findings_section(findings: Sequence[Finding]) -> Group:
    """Errors and warnings in full, up to ten; information shortened."""
    urgent = [f for f in findings if f.severity != "info"]
    parts: list[RenderableType] = []
    for finding in urgent[:_MOST]:
        parts += _in_full(finding)
    if len(urgent) > _MOST:
        parts.append(words(f"and {len(urgent) - _MOST} more: --format json lists all"))
    by_code: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.accepted is not None:
            parts.append(accepted_words(finding, finding.accepted))
        elif finding.severity == "info":
            by_code.setdefault(finding.code, []).append(finding)
    parts += [_in_short(group) for group in by_code.values()]
    return Group(*parts)


def waivers_section(waivers: Sequence[WaiverState]) -> Group:
    """A line for each waiver that has expired or that nothing matches."""
    return Group(*(words(waiver_words(w)) for w in waivers if w.state != "used"))


def waiver_words(waiver: WaiverState) -> str:
    """``AMP103 decoder.* expired on 2027-01-31 (fp32 head planned): what it covered counts again``"""
    name = f"{waiver.code} {waiver.module or place('')}"
    if waiver.state == "used":
        return f"{name} holds ({waiver.reason})"
    if waiver.state == "unused":
        return f"{name} matches nothing ({waiver.reason}): take it out"
    then = "what it covered counts again" if waiver.matches else "nothing matches it, take it out"
    return f"{name} expired on {waiver.expires} ({waiver.reason}): {then}"


def _in_full(finding: Finding) -> list[RenderableType]:
    where = place(finding.module) if finding.module or finding.op else ""
    at = source_place(finding.source)
    head = words(
        (f"{finding.severity} {finding.code}", _STYLES[finding.severity]),
        " ",
        "   ".join(part for part in (finding.title, where, at) if part),
    )
    return [
        head,
        _indented(words(finding.message)),
        _indented(words(finding.remedy, "  ", (f"ampdoctor explain {finding.code}", "dim"))),
    ]


def accepted_words(finding: Finding, accepted: Accepted) -> Text:
    """Who accepts it, and until when; its remedy is not asked for."""
    word = "waived" if accepted.by == "waiver" else "known"
    until = f" until {accepted.expires}" if accepted.expires else ""
    reason = f" Accepted{until}: {accepted.reason}" if accepted.reason else ""
    where = f"{place(finding.module)}: " if finding.module or finding.op else ""
    return words((f"{word} {finding.code}", _STYLES["info"]), f" {where}{finding.message}{reason}")


def _indented(text: Text) -> Padding:
    return Padding(text, (0, 0, 0, 2))


def _in_short(group: Sequence[Finding]) -> Text:
    first = group[0]
    if len(group) == 1:
        where = f"{place(first.module)}: " if first.module else ""
        text = f"{where}{first.message}"
    else:
        text = f"{first.title}: {listing(list(dict.fromkeys(place(f.module) for f in group)))}"
    return words((f"{first.severity} {first.code}", _STYLES["info"]), " ", text)

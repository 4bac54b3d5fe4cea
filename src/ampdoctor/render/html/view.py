"""What the page shows of a report's lists: which steps of a path, which findings together, which figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from ampdoctor.diagnose.loop.rules import LOOP_RULES
from ampdoctor.diagnose.report import Finding, FirstFault, ParameterRow, Report
from ampdoctor.diagnose.rules import RULES
from ampdoctor.diagnose.run_report import RunReport
from ampdoctor.diagnose.wording import count_words, listing, number, place, short_op
from ampdoctor.facts.site import Source
from ampdoctor.render.html.rule_sections import Section, sections


@dataclass(frozen=True)
class Stop:
    """One module on the way of a bad value: what its ops made of it."""

    module: str
    backward: bool
    ops: tuple[str, ...]
    source: Source | None
    value: str
    """What the last of the ops put out: ``inf`` | ``nan`` | ``finite``."""


@dataclass(frozen=True)
class Card:
    """A finding that asks for action, or that someone accepts; of those that only inform, all of one rule."""

    findings: tuple[Finding, ...]
    page: tuple[Section, ...]
    """The rule's page; () where an earlier card has it."""

    @property
    def first(self) -> Finding:
        """The one that gives the card its head."""
        return self.findings[0]

    @property
    def standing(self) -> str:
        """``error`` | ``warning`` | ``info``; ``waived`` or ``known`` for one that someone accepts."""
        if self.first.accepted is None:
            return self.first.severity
        return "waived" if self.first.accepted.by == "waiver" else "known"


def stops(fault: FirstFault) -> tuple[Stop, ...]:
    """The modules on the path; once the value is in the loss, that all of backward has it is no news."""
    path = [s for s in fault.path if s.phase == "forward" or not fault.reaches_loss]
    found = []
    for (phase, module), group in groupby(path, key=lambda s: (s.phase, s.module)):
        steps = list(group)
        ops = tuple(short_op(s.op) for s in steps)
        source = next((s.source for s in steps if s.source is not None), None)
        found.append(Stop(module, phase == "backward", ops, source, steps[-1].value))
    return tuple(found)


def ends(fault: FirstFault) -> tuple[tuple[str, str], ...]:
    """Where the value arrives, the loss or gradients, or what absorbs it; each with names, or ''."""
    arrives = [("the loss", "")] if fault.reaches_loss else []
    if fault.reaches_gradients:
        count = count_words(len(fault.reaches_gradients), "gradient")
        arrives.append((count, listing(fault.reaches_gradients, 6)))
    if fault.spoils_buffers:
        count = count_words(len(fault.spoils_buffers), "buffer")
        arrives.append((count, f"{listing(fault.spoils_buffers, 6)}: the next step starts from it"))
    if not arrives and fault.absorbed_at is not None:
        at = fault.absorbed_at
        arrives.append(("absorbed", f"by {place(at.module)} {short_op(at.op)}"))
    return tuple(arrives)


def cards(report: Report | RunReport) -> tuple[Card, ...]:
    """The findings in the report's order, information of one rule together, each rule's page once."""
    pages = {rule.code: sections(rule.page) for rule in RULES}
    pages |= {rule.code: sections(rule.page) for rule in LOOP_RULES}
    groups: list[list[Finding]] = []
    informing: dict[str, list[Finding]] = {}
    for finding in report.findings:
        alone = finding.severity != "info" or finding.accepted is not None
        group = [] if alone else informing.setdefault(finding.code, [])
        if not group:
            groups.append(group)
        group.append(finding)
    return tuple(Card(tuple(group), pages.pop(group[0].code, ())) for group in groups)


def figure(value: Any) -> str:
    """A piece of evidence in words."""
    match value:
        case None:
            return "not known"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return number(value)
        case str():
            return value or "none"
        case Mapping():
            return listing([f"{key}: {figure(item)}" for key, item in value.items()], 12) or "none"
        case Sequence():
            return listing([figure(item) for item in value], 12) or "none"
        case _:
            return str(value)


def sentence(words: str) -> str:
    """With a capital at its start and a full stop at its end, where it has neither."""
    return words[:1].upper() + words[1:] + ("" if words.endswith(".") else ".")


def parameter_rows(report: Report) -> tuple[ParameterRow, ...]:
    """Those that lose most first."""
    return tuple(sorted(report.parameters, key=lambda p: p.lost_fraction or 0.0, reverse=True))

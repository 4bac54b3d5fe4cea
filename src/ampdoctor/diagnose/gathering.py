"""Findings of one fault as one: a line that several modules run, a stream that a stack of layers hands on.

Rules speak of one module and op at a time, and so do waivers and the gate's baseline; a reader wants to be
told once. ``gathered`` makes the report's findings, ``apart`` gives back what the rules found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ampdoctor.diagnose.report import Finding, FindingPlace
from ampdoctor.diagnose.wording import listing, place, short_op

_STREAM = "AMP103"


def gathered(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings, in their order; those of one rule, severity and line (of one stack of layers, for thin
    headroom) are the first of them, or the loudest, with the places of the others."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        groups.setdefault(_key(finding), []).append(finding)
    return tuple(_one(group) for group in groups.values())


def apart(findings: Iterable[Finding]) -> Iterator[Finding]:
    """The findings, each place of each on its own: a gate accepts the one and not the other."""
    for finding in findings:
        if not finding.places:
            yield finding
        for p in finding.places:
            yield replace(
                finding, module=p.module, op=p.op, source=p.source, message=p.message, evidence=p.evidence,
                count=p.count, amounts=p.amounts, places=(),
            )  # fmt: skip


def _key(finding: Finding) -> tuple[object, ...]:
    same = (finding.code, finding.severity, finding.title, finding.accepted)
    if finding.code == _STREAM:
        return (*same, _stack(finding.module))
    if finding.source is None:
        return (*same, finding.module, finding.op, id(finding))
    return (*same, finding.source.file, finding.source.line)


def _stack(module: str) -> str:
    """``blocks.*`` for ``blocks.3.post``; the module itself where no numbered stack of that name holds it."""
    names = module.split(".")
    depth = next((i for i, name in enumerate(names) if name.isdigit()), 0)
    return ".".join((*names[:depth], "*")) if depth else module


def _one(group: list[Finding]) -> Finding:
    if len(group) == 1:
        return group[0]
    first = group[0]
    if first.code == _STREAM:
        first = max(group, key=lambda f: -(f.amounts.headroom_bits or 0.0))
    others = tuple(_place(f) for f in group if f is not first)
    count = sum(f.count for f in group)
    of_own = {(f.module, f.op) for f in group} == {(first.module, first.op)}
    names = [place(p.module) if p.op == first.op else f"{place(p.module)} {short_op(p.op)}" for p in others]
    names = list(dict.fromkeys(names))
    said = "Nor is there much left in" if first.code == _STREAM else "It is the same with"
    message = first.message if of_own else f"{first.message} {said} {listing(names)}."
    return replace(first, message=message, count=count, places=(_place(first), *others))


def _place(finding: Finding) -> FindingPlace:
    return FindingPlace(
        finding.module,
        finding.op,
        finding.source,
        finding.message,
        finding.evidence,
        finding.count,
        finding.amounts,
    )

"""A rule of the training loop: a code, a page, and a check that turns events into findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.wording import scale
from ampdoctor.facts.loop import Event, LoopTrace
from ampdoctor.facts.site import Source
from ampdoctor.facts.words import EventKind, Severity


@dataclass(frozen=True)
class LoopRule:
    """One rule, one file; its module docstring is the page ``ampdoctor explain`` prints."""

    code: str
    title: str
    severity: Severity
    """The severity of its findings where they matter."""
    page: str
    check: Callable[[LoopTrace], Iterable[Finding]]


def finding(
    code: str,
    title: str,
    severity: Severity,
    source: Source | None,
    message: str,
    remedy: str,
    evidence: Mapping[str, Any],
    count: int = 1,
) -> Finding:
    """A finding at a line of the loop: it has no module and no op."""
    return Finding(
        code=code, severity=severity, title=title, module="", op="", source=source, message=message,
        evidence=evidence, remedy=remedy, count=count,
    )  # fmt: skip


def scale_words(value: float | None) -> str:
    """A loss scale in words; ``?`` for None."""
    return "?" if value is None else scale(value)


def of_kind(trace: LoopTrace, *kinds: EventKind) -> list[Event]:
    """The events of these kinds, in order."""
    return [event for event in trace.events if event.kind in kinds]


def between(trace: LoopTrace, first: int, last: int, *kinds: EventKind) -> Iterator[Event]:
    """The events of these kinds after the order ``first`` and before ``last``."""
    return (event for event in trace.events[first + 1 : last] if event.kind in kinds)


def before(trace: LoopTrace, event: Event, *kinds: EventKind) -> Event | None:
    """The last event of these kinds before ``event``."""
    earlier = (trace.events[at] for at in range(event.order - 1, -1, -1))
    return next((e for e in earlier if e.kind in kinds), None)


def still_scaled(trace: LoopTrace, kind: EventKind) -> list[tuple[Event, float]]:
    """The events of this kind on gradients that a scale other than 1 still multiplies, each with that scale.

    It is that of the last scaled backward, or torch.autograd.grad, before the event.
    """
    scales = {e.order: e.scale for e in of_kind(trace, "backward", "grad") if e.scaler}
    found = []
    for event in of_kind(trace, kind):
        latest = max((order for order in scales if order < event.order), default=None)
        scale = 1.0 if latest is None else scales[latest]
        if event.gradients.get("scaled") and scale is not None and scale != 1.0:
            found.append((event, scale))
    return found


def in_steps(events: Sequence[Event]) -> str:
    """``in step 3``; ``in 12 steps, from 3 on``."""
    steps = list(dict.fromkeys(event.step for event in events))
    return f"in step {steps[0]:,}" if len(steps) == 1 else f"in {len(steps):,} steps, from {steps[0]:,} on"


def by_line(events: Iterable[Event]) -> list[list[Event]]:
    """The events grouped by their line, in the order in which lines first appear."""
    groups: dict[Source | None, list[Event]] = {}
    for event in events:
        groups.setdefault(event.source, []).append(event)
    return list(groups.values())

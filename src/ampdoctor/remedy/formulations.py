"""Other ways to write the line of a fault that a program can run: another number, or the line in FP32."""

from __future__ import annotations

from collections.abc import Iterator

from ampdoctor.diagnose.report import FirstFault, Report
from ampdoctor.facts.floats import FLOAT_FORMATS
from ampdoctor.facts.site import Source
from ampdoctor.probe.plan import LineChange

_EPS = (1e-4, 1e-3)
"""Tried in this order: FP16 keeps all its bits from 6.1e-5 on."""
_SMALLER_MASK = 0.5
"""Of the format's lowest value: what is added to a mask then has room."""


def formulations(report: Report) -> Iterator[tuple[LineChange, ...]]:
    """Changes to try, each of one line or of the two that a fault speaks of; cheapest first."""
    fault = report.first_fault
    if fault is None:
        return
    yield from _constants(fault)
    root = fault.root.source if fault.root is not None else None
    lines = list(dict.fromkeys(_place(s) for s in (fault.source, root) if s is not None))
    for line in lines:
        yield (LineChange(*line),)
    if len(lines) > 1:
        yield tuple(LineChange(*line) for line in lines)


def _constants(fault: FirstFault) -> Iterator[tuple[LineChange, ...]]:
    root, fmt = fault.root, FLOAT_FORMATS.get(fault.dtype)
    if root is not None and root.constant is not None and root.source is not None:
        for eps in _EPS:
            yield (LineChange(*_place(root.source), root.constant, eps),)
    if root is None and fault.source is not None and fault.constant is not None and fmt is not None:
        if abs(fault.constant) > fmt.max:
            yield (
                LineChange(
                    *_place(fault.source), fault.constant, -fmt.max if fault.constant < 0 else fmt.max
                ),
            )
        elif abs(fault.constant) == fmt.max:
            yield (LineChange(*_place(fault.source), fault.constant, fault.constant * _SMALLER_MASK),)


def _place(source: Source) -> tuple[str, int]:
    return source.file, source.line

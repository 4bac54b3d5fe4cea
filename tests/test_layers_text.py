"""The layers table: worst first in what the verdict is about, and never two rows alike."""

from __future__ import annotations

from ampdoctor.diagnose.engine import diagnose
from ampdoctor.render.labels import labels
from ampdoctor.render.layer_columns import left
from trace_builder import birth, candidate, module, record, reference, trace


def test_a_fault_of_backward_sorts_by_gradients() -> None:
    """In forward c has the least headroom; in backward b is born inf, and a lost more than c."""
    names = ("a", "b", "c")
    forward = [record(n, "aten::mm", i, 2.0**i) for i, n in enumerate(names)]
    zeros = {"a": 3, "c": 1}
    backward = [
        record(n, "aten::mm", 3 + i, 1.0, "backward", zeros=z, flushed=z)
        for i, (n, z) in enumerate(zeros.items())
    ]
    bad = record("b", "aten::mm", 5, None, "backward", inf=4)
    twins = tuple(record(n, "aten::mm", i, 1.0, "backward") for i, n in enumerate(names))
    report = diagnose(
        trace(
            modules=tuple(module(n) for n in names),
            passes=(reference(sites=twins), candidate(sites=(*forward, *backward, bad))),
            births=(birth("b", phase="backward", reaches_gradients=("w",)),),
        )
    )
    assert report.verdict in ("backward-overflow", "no-workable-scale")
    assert [row.module for row in report.layers] == ["b", "a", "c"]


def test_rows_never_look_alike() -> None:
    names = [f"encoder.{'x' * 40}.{i}.{'y' * 40}" for i in range(3)]
    shown = labels(names, ["Linear"] * 3, 20, "…")
    assert len(set(shown)) == 3
    assert max(map(len, shown)) <= 20


def test_a_bar_is_empty_where_nothing_is_left() -> None:
    assert [left(bits) for bits in (0.0, -2.0, 8.0, 16.0, 30.0, None)] == [0, 0, 50, 100, 100, None]

"""Layers in few columns: what is cut off is what they have in common."""

from __future__ import annotations

import pytest

from ampdoctor.render.labels import labels


@pytest.mark.parametrize(
    ("names", "width", "expected"),
    [
        (["fc", "head"], 12, ["fc Linear", "head Linear"]),
        (["decoder.block", "fc"], 13, ["decoder.block", "fc Linear"]),
        (
            ["encoder.layer.0.attention.self", "encoder.layer.11.attention.self"],
            20,
            ["...0.attention.self", "...11.attention.self"],
        ),
        (
            ["encoder.layer.0.intermediate.act", "encoder.layer.1.intermediate.act"],
            20,
            ["...0....rmediate.act", "...1....rmediate.act"],
        ),
        (["enc.layer.0.intermediate.act"], 20, ["enc....ermediate.act"]),
        (["averyveryverylongname.and.more"], 14, ["...me.and.more"]),
        (["top-level code"], 14, ["top-level code"]),
    ],
    ids=["with class", "without class", "common part", "middle", "alone", "long first part", "no module"],
)
def test_labels(names: list[str], width: int, expected: list[str]) -> None:
    kinds = ["" if name == "top-level code" else "Linear" for name in names]
    found = labels(names, kinds, width, "...")
    assert found == expected
    assert all(len(label) <= width for label in found)


def test_what_a_terminal_would_act_on_is_written_out() -> None:
    assert labels(["a\x1b[2J"], [""], 20, "…") == [r"a\x1b[2J"]

"""The curve of the loss scale as `scaler` draws it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from ampdoctor.facts.scaler_policies import POLICIES
from ampdoctor.facts.training import StepRecord
from ampdoctor.render import SCALER as FORMATS
from ampdoctor.render.options import Options
from ampdoctor.render.scaler.curve import draw
from scaler_reports import render, report_on, steps_of


def lines(ceilings: Sequence[int | None], width: int = 20, **changes: Any) -> list[str]:
    curve = draw(steps_of(ceilings, **changes)[0], width, unicode=False)
    return [f"{label}|{line.rstrip()}" for label, line in zip(curve.labels, curve.lines, strict=True)]


def test_the_curve_falls_to_its_level_under_a_dotted_threshold() -> None:
    assert lines([14] * 5) == [
        "65,536|----+",
        "32,768|    +---+",
        "16,384|........+-----------",
    ]


def test_the_curve_rises_step_by_step() -> None:
    assert lines([40] * 4, interval=1) == [
        "524,288|            +---",
        "262,144|        +---+",
        "131,072|    +---+",
        "65,536|----+",
    ]


def test_a_fall_by_several_powers_is_drawn_through() -> None:
    steps = steps_of([40, 40])[0]
    low = StepRecord(1, 0, 1.0, 8192.0, False, 40, (), None)
    curve = draw((steps[0], low), 2, unicode=True)
    assert curve.lines == ("─╮", " │", " │", " ╰")


def test_a_line_is_labelled_with_the_scale_it_draws() -> None:
    """From 1,000, no power of two, down to 500; and where 16 powers share 8 lines, the higher of each two."""
    steps = steps_of([8] * 2, init_scale=1000.0)[0]
    assert draw(steps, 2, unicode=False).labels == ("1,000", "500")
    many = steps_of([None] * 16, init_scale=2.0**15)[0]
    assert draw(many, 16, unicode=False).labels == tuple(f"{2 ** (15 - 2 * k):,}" for k in range(8))


def test_many_steps_share_a_column_and_a_skip_among_them_is_kept() -> None:
    curve = draw(steps_of([16] * 99 + [15])[0], 10, unicode=False)
    assert curve.lines == ("----------",)
    assert curve.skips == " " * 9 + "x"
    assert (curve.first, curve.last) == (0, 99)


def test_a_scale_of_zero_can_be_drawn() -> None:
    assert len(lines([None] * 200, width=60)) <= 12


def test_the_text_at_80_columns() -> None:
    text = render(report_on([12] * 20), unicode=False)
    body = text.splitlines()
    assert max(map(len, body)) <= 80
    assert " SETTLES at 4,096. 4 of 20 steps are skipped on the way down from 65,536." in body
    start = next(i for i, line in enumerate(body) if line.startswith(" Loss scale"))
    assert body[start : start + 9] == [
        " Loss scale   -- loss scale   . highest that works",
        "    65,536 |---+",
        "    32,768 |   +--+",
        "    16,384 |      +--+",
        "     8,192 |         +--+",
        "     4,096 |............+-----------------------------------------------",
        "   skipped |xxxxxxxxxxxx",
        "      step  0                                                         19",
        "",
    ]
    assert " Skipped    steps 0 to 3 at 65,536 .. 8,192: inf from mm in head, backward of" in body
    assert "            addmm  model.py:40" in body
    assert "            non-finite gradient of head.weight" in body
    assert "  torch          65,536   2,000 steps         4     4,096" in body
    assert "  deepspeed      65,536   1,000 steps         5     4,096" in body


@pytest.mark.parametrize("ceilings", [[12] * 20, [None] * 300, [40], [-3] * 25, []])
def test_every_outcome_fits_and_needs_no_unicode(ceilings: list[int | None]) -> None:
    text = render(report_on(ceilings), unicode=False)
    assert text.isascii()
    assert "\\u" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_json_document() -> None:
    document = json.loads(FORMATS["json"](report_on([12] * 6), Options()))
    assert document["schema"] == "ampdoctor.scaler/1"
    assert (document["outcome"], document["level"], document["final_scale"]) == ("settles", 4096.0, 4096.0)
    assert document["skipped"] == {"at_start": 4, "later": 0, "at_any_scale": 0}
    assert document["highest_scale_for_all"] == 4096.0
    assert document["steps"][0] == {
        "step": 0,
        "batch": 0,
        "loss": 1.5,
        "scale": 65536.0,
        "skipped": True,
        "highest_finite_scale": 4096.0,
        "bad_parameters": ["head.weight"],
    }
    (group,) = document["skips"]
    assert (group["count"], group["cause"]["module"], group["cause"]["op"]) == (4, "head", "aten::mm")
    assert group["cause"]["source"]["line"] == 40
    assert [p["policy"] for p in document["policies"]] == list(POLICIES)
    assert document["policies"][0]["skipped"] == 4


def test_json_writes_numbers_that_are_none_as_words() -> None:
    steps = (StepRecord(0, 0, float("nan"), 65536.0, True, None, ("w",), None),)
    document = json.loads(FORMATS["json"](report_on([None], steps=steps), Options()))
    assert document["steps"][0]["loss"] == "nan"
    assert document["steps"][0]["highest_finite_scale"] is None

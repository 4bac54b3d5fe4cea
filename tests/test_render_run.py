"""A run in every format: its curves, what is wrong in its loop, the steps that were examined."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ET

import pytest

from ampdoctor.diagnose.engine import diagnose
from ampdoctor.diagnose.policy import Policy
from ampdoctor.diagnose.run_report import Examined, RunReport, run_report
from ampdoctor.facts.loop import Event, LoopTrace, Moment
from ampdoctor.facts.site import Source
from ampdoctor.render import RUN, Options
from ampdoctor.render.html.timeline import timeline
from trace_builder import trace

LINE = Source("train.py", 7, "scaler.update()")


def moment(step: int, loss: float | None, scale: float | None, skipped: bool = False) -> Moment:
    return Moment(step, loss, scale, None if skipped else 1.5, skipped, LINE)


MOMENTS = (
    moment(0, 3.0, 1024.0, skipped=True),
    moment(1, 3.0, 512.0),
    moment(2, math.nan, 512.0, skipped=True),
    moment(3, 1.0, 256.0),
    moment(4, 2.0, 256.0),
)


def report(moments: tuple[Moment, ...] = MOMENTS) -> RunReport:
    refused = Event(0, 1, "update", LINE, scaler=1, raised="AssertionError: No inf checks were recorded")
    examined = Examined(1, "first complete step", "", diagnose(trace()))
    loop = LoopTrace("train.py", (refused,), moments)
    return run_report(loop, len(moments), 2, [examined], Policy(), ["one loss"], "--steps 5", "0.1.0")


def test_the_curves_are_points_of_the_steps_figures() -> None:
    chart = timeline(MOMENTS)
    assert chart is not None
    loss, scale = chart.lines
    # 4 % of the height is left free at either edge; a NaN breaks the line
    assert loss.segments == ("0.00,4.00 25.00,4.00", "75.00,96.00 100.00,50.00 100.00,50.00")
    assert (loss.high, loss.low, loss.broken) == ("3", "1", (50.0,))
    # in powers of two: 512 is half-way from 256 to 1,024, and held until it changes
    assert scale.segments == ("0.00,4.00 25.00,4.00 25.00,50.00 75.00,50.00 75.00,96.00 100.00,96.00",)
    assert chart.skips == (0.0, 50.0)
    assert [row.loss for row in chart.rows] == ["3", "3", "nan", "1", "2"]
    assert [(mark.words, mark.at) for mark in chart.marks] == [
        ("0", 0), ("1", 25), ("2", 50), ("3", 75), ("4", 100),
    ]  # fmt: skip
    assert timeline(MOMENTS[:1]) is None


@pytest.mark.parametrize("scale", [None, 0.0, math.inf, 1024.0])
def test_figures_that_are_missing_constant_or_not_finite_can_be_drawn(scale: float | None) -> None:
    moments = tuple(moment(i, None if i % 2 else math.inf, scale) for i in range(4))
    assert timeline(moments) is not None
    assert "Timeline" in RUN["html"](report(moments), Options())


def test_a_long_run_is_drawn_with_few_points() -> None:
    chart = timeline([moment(i, float(i), 1024.0, skipped=i == 777) for i in range(20_000)])
    assert chart is not None
    assert all(len(segment.split()) <= 602 for line in chart.lines for segment in line.segments)
    assert len(chart.rows) <= 102
    assert [row.step for row in chart.rows if row.skipped] == ["777"]


def test_the_page_has_the_chart_the_finding_and_the_step_and_loads_nothing() -> None:
    page = RUN["html"](report(), Options())
    assert page.count("<polyline") == 3
    assert 'aria-label="Loss scale over the steps: 1,024 in the first step, 256 in the last' in page
    assert "About AMP426" in page
    assert 'href="#report-2"' in page
    assert 'id="report-2"' in page
    assert "Not seen: one loss." in page
    assert "Stopped: --steps 5." in page
    assert not re.search(r"""(?:src|href)=["'](?!#|data:)""", page)
    for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ET.fromstring(svg)


@pytest.mark.parametrize("name", sorted(RUN))
def test_every_format_names_the_loops_fault_and_its_line(name: str) -> None:
    text = RUN[name](report(), Options())
    assert "AMP426" in text
    assert "scaler.update() is called" in text
    if name in ("json", "sarif"):
        json.loads(text)
    if name == "junit":
        ET.fromstring(text)
    assert "train.py" in text

"""The figures behind the page's charts, and rule pages cut into paragraphs and lists."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ampdoctor.diagnose.report import GradientBins
from ampdoctor.diagnose.rule import Rule
from ampdoctor.diagnose.rules import RULES
from ampdoctor.facts.floats import BFLOAT16, FLOAT16
from ampdoctor.render.html.charts import Figures, Mark, figures, gradient_chart, sweep_chart
from ampdoctor.render.html.rule_sections import Block, Section, sections
from html_reports import ATTENTION, HEAD, HISTOGRAM, TOTAL, gradients, overflow


@pytest.mark.parametrize(
    ("bins", "exponent", "expected"),
    [
        # 2^-30 and the tie become zero; the other 2^-25 and the four at 2^-20 are subnormal
        (TOTAL, 0, Figures("12.5 %", "31.2 %", "56.2 %", "0.0 %")),
        # the tie is now at 2^-24, the smallest number that FP16 holds
        (TOTAL, 1, Figures("6.2 %", "37.5 %", "56.2 %", "0.0 %")),
        # 1.5 * 2^16 leaves the range
        (TOTAL, 2, Figures("6.2 %", "37.5 %", "50.0 %", "6.2 %")),
        (TOTAL, 11, Figures("0.0 %", "6.2 %", "87.5 %", "6.2 %")),
        (ATTENTION, 1, Figures("25.0 %", "50.0 %", "25.0 %", "0.0 %")),
        # 65520 overflows, though its exponent is that of the largest number
        (HEAD, 0, Figures("0.0 %", "0.0 %", "50.0 %", "50.0 %")),
    ],
)
def test_shares_at_a_loss_scale(bins: GradientBins, exponent: int, expected: Figures) -> None:
    assert figures(bins, FLOAT16, exponent) == expected


def test_the_same_gradients_in_a_wider_format() -> None:
    bins = replace(TOTAL, underflow_fraction=())
    assert figures(bins, BFLOAT16, 2) == Figures("0.0 %", "0.0 %", "100.0 %", "0.0 %")


def test_no_gradient_at_all_is_no_division_by_zero() -> None:
    nothing = replace(TOTAL, histogram=type(TOTAL.histogram)(), nonzero=0, absmax=0.0, underflow_fraction=())
    assert figures(nothing, FLOAT16, 0) == Figures("0.0 %", "0.0 %", "0.0 %", "0.0 %")


def test_the_histogram_stands_at_the_configured_scale() -> None:
    chart = gradient_chart(gradients())
    assert chart is not None
    assert (chart.exponent, chart.configured, chart.recommended) == (0, "configured", 1)
    # from the smallest gradient, or just under the range, to the largest or just over what it can reach
    assert (chart.low, chart.high) == (-30, 24)
    heights = {c.exponent: c.height for c in chart.columns if c.height}
    assert heights == {-30: 12.5, -25: 25.0, -20: 50.0, 0: 100.0, 14: 12.5}
    assert {c.exponent: c.kind for c in chart.columns if c.height} == {
        -30: "zero",
        -25: "subnormal",
        -20: "subnormal",
        0: "normal",
        14: "normal",
    }
    assert chart.columns[5].words == "2^-25: 2"


def test_the_zones_fill_the_axis() -> None:
    chart = gradient_chart(gradients())
    assert chart is not None
    # 55 columns: five below 2^-25, eleven up to 2^-14, thirty up to 2^15, nine beyond
    columns = [(band.words, round(band.width * 55 / 100)) for band in chart.bands]
    assert columns == [("zero", 5), ("subnormal", 11), ("normal", 30), ("overflow", 9)]


def test_what_lies_beyond_the_axis_is_in_its_last_column() -> None:
    tiny = replace(TOTAL, histogram=type(TOTAL.histogram)({-90: 7, -3: 1}), nonzero=8)
    chart = gradient_chart(replace(gradients(), gradient_histogram=replace(HISTOGRAM, total=tiny)))
    assert chart is not None
    assert (chart.low, chart.columns[0].words) == (-41, "2^-41 and less: 7")


@pytest.mark.parametrize(
    ("configured", "exponent", "words"),
    [(1000.0, 9, "nearest to configured"), (0.25, 0, "nearest to configured"), (65536.0, 16, "configured")],
)
def test_a_scale_the_slider_does_not_have(configured: float, exponent: int, words: str) -> None:
    report = gradients()
    chart = gradient_chart(replace(report, loss_scale=replace(report.loss_scale, configured=configured)))
    assert chart is not None
    assert (chart.exponent, chart.configured) == (exponent, words)


def test_the_sweep_has_a_column_per_power_of_two() -> None:
    chart = sweep_chart(gradients())
    assert chart is not None
    assert [(c.height, c.kind) for c in chart.columns[:3]] == [
        (12.5, "fails"),
        (6.25, "works"),
        (100.0, "overflows"),
    ]
    assert chart.columns[1].words == "2^1: 6.2 % become zero, works"
    assert len(chart.columns) == 33
    assert chart.marks[0] == Mark("2^0", 50 / 33)
    assert (chart.configured, chart.recommended) == (50 / 33, 150 / 33)


def test_a_report_without_gradients_has_no_charts() -> None:
    assert (sweep_chart(overflow()), gradient_chart(overflow())) == (None, None)


PAGE = """AMP999: a title

What it means
    One sentence
    on two lines.

    Another paragraph.

What to do
    1. First this,
       which is long.
    2. Then that.
    Neither always helps.
"""


def test_a_page_as_paragraphs_and_lists() -> None:
    assert sections(PAGE) == (
        Section(
            "What it means",
            (Block(False, ("One sentence on two lines.",)), Block(False, ("Another paragraph.",))),
        ),
        Section(
            "What to do",
            (
                Block(True, ("First this, which is long.", "Then that.")),
                Block(False, ("Neither always helps.",)),
            ),
        ),
    )


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_no_word_of_a_page_is_lost(rule: Rule) -> None:
    page = rule.page
    shown = [page.strip().splitlines()[0]]
    for section in sections(page):
        shown.append(section.heading)
        for block in section.blocks:
            shown += [f"{i}. {text}" if block.numbered else text for i, text in enumerate(block.texts, 1)]
    assert " ".join(shown).split() == page.split()

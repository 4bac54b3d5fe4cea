"""The HTML report as a document: what it says, that nothing in it acts, that it asks for nothing."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ampdoctor.cli.main import run
from ampdoctor.diagnose.gate_result import WaiverState
from ampdoctor.diagnose.report import Report
from ampdoctor.facts.excerpt import Excerpt
from ampdoctor.render import FORMATS, MANY, Options
from ampdoctor.render.html import fragment
from ampdoctor.store.traces import write_trace
from hostile import NAMES, accepted, clean, failing, many, sick, unchecked, without_source
from html_reports import gradients, layered, overflow
from trace_builder import birth, candidate, parameter, reference, source, trace

VOID = {"meta", "link", "input", "br", "wbr"}
INLINE = {"a", "code", "output", "span", "strong", "wbr"}
"""Elements at whose ends a word goes on."""


class Document(HTMLParser):
    """Every element with its text, and a note of each tag that is not closed where it should be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.code: list[str] = []
        self.feed(text)
        self.close()
        self.wrong += self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        self._end_word(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)
        self._end_word(tag)

    def handle_data(self, data: str) -> None:
        if {"script", "style"} & set(self.open):
            self.code.append(data)
        elif "svg" not in self.open:
            self.texts.append(data)

    def _end_word(self, tag: str) -> None:
        if tag not in INLINE:
            self.texts.append(" ")

    @property
    def text(self) -> str:
        """What a reader sees, blanks made one."""
        return " ".join("".join(self.texts).split())


def page(report: Report, options: Options | None = None) -> str:
    return FORMATS["html"](report, options or Options(base="/repo"))


def text(report: Report, options: Options | None = None) -> str:
    return Document(page(report, options)).text


REPORTS = {
    "overflow": overflow(),
    "gradients": gradients(),
    "layers": layered(30),
    "clean": clean(),
    "without source": without_source(),
    "accepted": accepted(),
    "gate failed": failing(sick()),
    "gate unchecked": unchecked(),
    "many": many(40),
    **{f"name: {what}": sick(name) for what, name in NAMES.items()},
}


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS.keys())
def test_every_tag_is_closed_and_nothing_is_asked_for(report: Report) -> None:
    html = page(report)
    document = Document(html)
    assert document.wrong == []
    loads = [
        (tag, name, value)
        for tag, attributes in document.tags
        for name, value in attributes.items()
        if name in ("src", "href", "srcset", "action", "data", "poster") and not (value or "").startswith("#")
    ]
    assert loads == [("link", "href", "data:,")]
    assert not re.search(r"https?:|url\(|@import|fetch\(|XMLHttpRequest", "".join(document.code))
    html.encode()  # no surrogate is left


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES.keys())
def test_a_name_stays_text(name: str) -> None:
    document = Document(page(sick(name)))
    assert [tag for tag, _ in document.tags].count("script") == 1  # the page's own
    assert not [value for _, attributes in document.tags for value in attributes if value.startswith("on")]


def test_script_in_a_name_is_shown_as_it_is_written() -> None:
    assert "<script>alert(1)</script> leaves the FP16 range" in text(sick(NAMES["html"]))
    assert "alert(1)</script>" not in page(sick(NAMES["html"]))


def test_control_characters_are_written_out() -> None:
    assert r"\x1b[31mred\x00 leaves the FP16 range" in text(sick(NAMES["escapes"]))
    assert "\x1b" not in page(sick(NAMES["escapes"]))


def test_a_name_cannot_end_the_data_of_the_histogram() -> None:
    report = gradients()
    assert report.gradient_histogram is not None
    layers = tuple(replace(layer, module="</script><b>x</b>") for layer in report.gradient_histogram.layers)
    sick_names = replace(report, gradient_histogram=replace(report.gradient_histogram, layers=layers))
    document = Document(page(sick_names))
    assert "b" not in [tag for tag, _ in document.tags]
    assert "</script><b>x</b>" in document.text  # in the list to choose from


def test_only_the_pages_own_script_may_run() -> None:
    html = page(overflow())
    script = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script[0].encode()).digest()).decode()
    assert len(script) == 1
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in html


def test_a_report_reads_top_to_bottom() -> None:
    words = text(overflow())
    parts = [
        "OVERFLOW in forward. blocks.1.ff.wo leaves the FP16 range; FP32 is fine.",
        "Loss FP16 nan · FP32 2",
        "Born here blocks.1.ff.wo Linear aten::mm forward model.py:33 in forward",
        "Value inf; exactly 66,246 (FP16 ends at 65,504) element [0, 3, 7] of sample 0; 18 of 1,536 elements",
        "Inputs float16 3x4: absmax 1,204 float16 3x4: absmax 46.1",
        "inf blocks.1 add model.py:40 nan final mul model.py:40 nan top-level code nll_loss_forward",
        "the loss and 1 gradient w",
        "blocks.1.ff.wi 1,024 6.0 bits blocks.1.ff.wo 66,246 x64.7 none",
        "error AMP101 forward overflow",
        "What to do. Keep blocks.1.ff.wo in FP32",
        "About AMP101 What it means An op of the forward made a number",
        "info AMP901",
        "Configured 65,536. No other helps: the fault is in forward.",
        "blocks.1.ff.wo Linear 1 inf none",
        "2 passes in 1.9 s.",
        "Not seen: real GPU kernels (AMP901).",
    ]
    found = [words.find(part) for part in parts]
    assert -1 not in found, parts[found.index(-1)]
    assert found == sorted(found)


def test_the_title_says_what_happened() -> None:
    assert "<title>OVERFLOW in forward. t5.yaml · ampdoctor</title>" in page(overflow())


def test_the_code_around_the_line_is_shown_where_it_can_be_read() -> None:
    lines = Excerpt(32, ("def forward(self, h):", "    return self.wo(h)", "# <end>"))
    words = text(overflow(), Options(excerpt=lambda asked: lines if asked == source() else None))
    assert "model.py:33 in forward 32 def forward(self, h): 33 return self.wo(h) 34 # <end> Value" in words


@pytest.mark.parametrize("near", [True, False])
def test_the_command_reads_code_of_this_folder_and_rendering_does_not(
    near: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trace of somebody else's may name any file: lines from elsewhere do not travel in a report."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    program = tmp_path / ("here" if near else "") / "model.py"
    program.write_text("class T5:\n    def forward(self, h):\n        return self.wo(h)\n")
    fault = birth(source=source(3, file=str(program)))
    sick_pass = candidate(loss=float("nan"), parameters=(parameter("w", nan=100),))
    write_trace(trace(births=(fault,), passes=(reference(), sick_pass)), tmp_path / "trace.json")
    out = tmp_path / "report.html"
    assert run(["report", str(tmp_path / "trace.json"), "--format", "html", "-o", str(out)]) == 0
    text = Document(out.read_text()).text
    assert ("1 class T5: 2 def forward(self, h): 3 return self.wo(h)" in text) == near


def test_each_rules_page_is_there_once() -> None:
    document = Document(page(many(3)))
    assert document.text.count("About AMP101") == 1
    assert document.text.count("error AMP101 forward overflow") == 3


def test_information_of_one_rule_stands_together() -> None:
    report = clean()
    doubts = tuple(replace(report.findings[0], message=f"Doubt {i}.") for i in range(3))
    words = text(replace(report, findings=doubts))
    assert words.count("info AMP901") == 1
    assert "Doubt 0. Doubt 1. Doubt 2." in words


def test_what_someone_accepts_says_who_and_asks_for_nothing() -> None:
    words = text(accepted())
    assert "waived AMP101 forward overflow" in words
    assert "Accepted by the waiver: known since May" in words
    assert "Keep blocks.1.ff.wo in FP32" not in words


def test_the_gates_word() -> None:
    words = text(failing(sick()))
    assert "Gate: failed forward overflow blocks.1.ff.wo src/model.py:33" in words
    assert "(1 is too many)" in words
    assert "Gate: not measured gradient drift" not in words
    assert "Gate: not measured a gradient drifts from the reference fc There is no reference." in text(
        unchecked()
    )
    assert "Gate" not in text(sick())


def test_waivers_that_no_longer_hold_are_named() -> None:
    expired = WaiverState("AMP103", "decoder.*", "head in FP32 soon", "2026-01-31", "expired", 1)
    holding = WaiverState("AMP105", "x", "fine", "", "used", 1)
    words = text(replace(clean(), waivers=(expired, holding)))
    assert "AMP103 decoder.* expired on 2026-01-31 (head in FP32 soon): what it covered counts again" in words
    assert "AMP105" not in words


def test_the_loss_scale_and_its_sweep() -> None:
    words = text(gradients())
    assert "Configured 1. " in words
    assert "From 2^1 to 2^1 works. Recommended: 2, proven by running it." in words
    assert "2^0 12.5 % 25.0 % 2^1 6.2 % 2^2 overflows not finite 2^3 overflows" in words


def test_without_a_script_the_figures_at_the_configured_scale_are_there() -> None:
    words = text(gradients())
    assert "become zero 12.5 % keep fewer bits 31.2 % fit 56.2 % overflow 0.0 %" in words
    hidden = [
        attributes["class"] for _, attributes in Document(page(gradients())).tags if "hidden" in attributes
    ]
    assert set(hidden) == {"controls", "more"}  # what only a script makes work


def test_every_layer_is_there() -> None:
    words = text(layered(30))
    assert all(f" layer{i} " in words for i in range(30))


def test_several_reports_in_one_page() -> None:
    html = MANY["html"]([sick(), clean()], Options(base="/repo"))
    document = Document(html)
    assert document.wrong == []
    assert "<title>2 scans · ampdoctor</title>" in html
    assert "2 scans t5.yaml OVERFLOW in forward. blocks.1.ff.wo leaves the FP16 range" in document.text
    assert ("a", {"href": "#report-2"}) in document.tags
    assert html.count("<style>") == 1


def test_a_fragment_has_no_page_around_it() -> None:
    html = fragment(overflow())
    document = Document(html)
    assert document.wrong == []
    assert {"html", "head", "body", "main", "title"}.isdisjoint(tag for tag, _ in document.tags)
    assert "OVERFLOW in forward." in document.text


def test_a_fragments_style_holds_for_itself_alone() -> None:
    style = re.search(r"<style>(.*?)</style>", fragment(overflow()), re.DOTALL)
    assert style is not None
    plain = re.sub(r"/\*.*?\*/", "", style[1], flags=re.DOTALL)
    selectors = re.findall(r"([^{}]+)\{", plain)
    assert {s.strip() for s in selectors if not s.strip().startswith(("@", ".ampdoctor"))} == set()

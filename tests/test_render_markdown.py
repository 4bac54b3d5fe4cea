"""The report as Markdown: what a reader sees of it once GitHub has drawn it."""

from __future__ import annotations

import html
import re
from dataclasses import replace

import pytest
from markdown_it import MarkdownIt

from ampdoctor.diagnose.gate_result import PASSED, UNUSABLE, WaiverState
from ampdoctor.diagnose.rule import Rule
from ampdoctor.diagnose.rules import RULES
from ampdoctor.diagnose.unmeasured import unmeasured
from ampdoctor.render import FORMATS, MANY, Options
from ampdoctor.render.markdown_words import code, escaped
from ampdoctor.render.rule_page import first_paragraph, page_markdown
from hostile import (
    NAMES,
    REPOSITORY,
    accepted,
    clean,
    failing,
    gated,
    many,
    sick,
    unchecked,
    without_source,
)

OPTIONS = Options(base=f"{REPOSITORY}/sub", root=REPOSITORY)


def drawn(document: str) -> str:
    """The document as HTML, with GitHub's tables and strikethrough; HTML in it stays HTML."""
    return MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(document)


def visible(document: str) -> str:
    """What is left of the drawn document once its tags are gone."""
    return html.unescape(re.sub(r"<[^>]*>", "", drawn(document)))


def test_the_report_reads_top_to_bottom() -> None:
    assert FORMATS["markdown"](sick(), OPTIONS) == REPORT


REPORT = """\
## ampdoctor: `sub/t5.yaml`

**OVERFLOW in forward.** blocks.1.ff.wo leaves the FP16 range; FP32 is fine.

torch 2.13.0 · cpu, emulating CUDA · float16 autocast · 1 batch

| First fault |  |
| --- | --- |
| **Born at** | blocks.1.ff.wo (Linear) · aten::mm · forward<br>src/model.py:33 · return self.wo(h) |
| **Value** | inf; exactly 66,246 (FP16 ends at 65,504)<br>element \\[0, 3, 7\\] of sample 0; \
18 of 1,536 elements |
| **Inputs** | float16 3x4: absmax 1,204<br>float16 3x4: absmax 46.1 |
| **Reaches** | blocks.1 add -&gt; final mul (becomes NaN) -&gt; \
top level nll\\_loss\\_forward -&gt; loss and 1 gradient (w) |

- **Loss** FP16 nan · FP32 2
- **Loss scale** configured 65,536: no other helps: the fault is in forward
- other scales were not tried: every scale has the fault

### Findings

- **error AMP101 forward overflow** · `blocks.1.ff.wo` · `src/model.py:33`

  The exact value is 66,246; FP16 ends at 65,504. Only sample 0 of 2 does this.

  Keep blocks.1.ff.wo in FP32 (torch.autocast("cuda", enabled=False) around it, .float() on its inputs); \
look at that sample first; or train in BF16. `ampdoctor explain AMP101`

- info AMP901 CUDA's autocast policy and rounding were emulated on a CPU; no GPU kernel ran.

Not seen: real GPU kernels (AMP901).
"""


def test_several_reports_begin_with_a_table_of_them() -> None:
    document = MANY["markdown"]([sick(), clean("a.yaml")], OPTIONS)
    assert document.startswith(
        "## ampdoctor: 2 scans\n"
        "\n"
        "| Scanned | Verdict | Errors | Warnings | First fault |\n"
        "| --- | --- | ---: | ---: | --- |\n"
        "| `sub/t5.yaml` | forward-overflow | 1 | 0 | `blocks.1.ff.wo` |\n"
        "| `a.yaml` | clean | 0 | 0 |  |\n"
        "\n"
        "## ampdoctor: `sub/t5.yaml`\n"
    )
    assert document.endswith(FORMATS["markdown"](clean("a.yaml"), OPTIONS))


def test_a_gates_word_comes_after_the_verdict() -> None:
    gone = replace(failing(sick()), waivers=(WaiverState("AMP103", "a|b", "known", "", "unused", 0),))
    gone = replace(gone, gate=replace(gone.gate, gone=("AMP101 in fc",), notes=("CUDA was emulated.",)))
    before, _, rest = FORMATS["markdown"](gone, OPTIONS).partition("\n\n**Gate ")
    assert before.endswith("blocks.1.ff.wo leaves the FP16 range; FP32 is fine.")
    assert rest.partition("\n\ntorch 2.13.0")[0].splitlines() == [
        "failed**: 1 check",
        "",
        "- AMP101 forward overflow: 1 is too many · `blocks.1.ff.wo` · `src/model.py:33`",
        "- gone since the baseline: AMP101 in fc",
        r"- waiver AMP103 a\|b matches nothing (known): take it out",
        "- CUDA was emulated.",
    ]


def test_what_a_gate_could_not_check_is_counted() -> None:
    assert "\n**Gate not measured**: 1 limit could not be checked\n" in FORMATS["markdown"](
        unchecked(), OPTIONS
    )


def test_the_table_of_a_gate_says_which_passed() -> None:
    document = MANY["markdown"]([failing(sick()), gated(clean("a.yaml"), PASSED)], OPTIONS)
    assert document.splitlines()[2:6] == [
        "| Scanned | Gate | Verdict | Errors | Warnings | First fault |",
        "| --- | --- | --- | ---: | ---: | --- |",
        "| `sub/t5.yaml` | **failed** | forward-overflow | 1 | 0 | `blocks.1.ff.wo` |",
        "| `a.yaml` | **passed** | clean | 0 | 0 |  |",
    ]


def test_an_accepted_finding_says_why() -> None:
    document = FORMATS["markdown"](accepted(), OPTIONS)
    assert "\n- waived AMP101 blocks.1.ff.wo: The exact value is 66,246; FP16 ends" in document
    assert "Accepted: known since May\n" in document


def test_what_was_not_measured_has_no_figures() -> None:
    report = unmeasured("t5.yaml", "There is no config file.", UNUSABLE, "0.1.0")
    assert FORMATS["markdown"](report, OPTIONS) == (
        "## ampdoctor: `t5.yaml`\n\n**NOT MEASURED.** There is no config file.\n\n**Gate not run**\n\n"
        "Not seen: anything.\n"
    )


def test_one_report_needs_no_table() -> None:
    assert MANY["markdown"]([sick()], OPTIONS) == REPORT


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_name_stays_what_it_is(name: str) -> None:
    document = FORMATS["markdown"](sick(name), OPTIONS)
    shown = name.encode("unicode_escape").decode("ascii") if not name.isprintable() else name
    page = drawn(document)
    assert page.count("<tr>") == 5  # a heading, and four lines about the fault
    assert page.count("<td>") == 8
    assert not re.search(r"<(script|a|img|em|s|pre|h1|ol)\b", page)
    assert " ".join(shown.split()) in " ".join(visible(document).split())


@pytest.mark.parametrize("text", [*NAMES.values(), "# h", "- x", "+ x", "1) x", "===", "---", "\\", "a\\|b"])
def test_escaped_text_is_drawn_as_itself(text: str) -> None:
    if text.strip() and text.isprintable():
        assert visible(escaped(text)) == text.strip() + "\n"
    assert "\n" not in escaped(text)


@pytest.mark.parametrize("text", ["a", "`", "a`b", "``x``", "a|b", "<b>", "`a", "a``"])
def test_code_is_drawn_as_itself(text: str) -> None:
    assert drawn(code(text)) == f"<p><code>{html.escape(text)}</code></p>\n"


def test_no_code_for_no_text() -> None:
    assert code("") == ""


def test_a_line_nobody_knows_is_left_out() -> None:
    document = FORMATS["markdown"](without_source(), OPTIONS)
    assert "- **error AMP101 forward overflow** · `blocks.1.ff.wo`\n" in document


def test_a_file_outside_the_repository_is_named_without_its_folders() -> None:
    outside = replace(sick(), config="")
    document = FORMATS["markdown"](outside, Options(base="/elsewhere", root="/elsewhere"))
    assert "model.py:33" in document
    assert REPOSITORY not in document


def test_the_first_hundred_findings_are_told() -> None:
    document = FORMATS["markdown"](many(103), OPTIONS)
    assert document.count("**error AMP101") == 100
    assert "And 3 more: the JSON report lists all." in document


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_a_rules_page_is_text_lists_and_headings(rule: Rule) -> None:
    page = page_markdown(rule)
    assert page.startswith("## What it means\n\n")
    assert "<pre>" not in drawn(page)
    _, _, body = rule.page.partition("\n\n")
    body = re.sub(r"^ {4}\d\. ", "", body, flags=re.MULTILINE)  # the numbers of a list are not in its HTML
    assert visible(page).split() == body.split()
    assert 20 < len(first_paragraph(rule)) < 1024  # GitHub's most for a description


def test_a_paragraph_after_a_list_is_no_part_of_it() -> None:
    (rule,) = (rule for rule in RULES if rule.code == "AMP101")
    assert "</ol>\n<p>Lowering the loss scale" in drawn(page_markdown(rule))

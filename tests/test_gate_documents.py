"""What a gate is asked by its config, and the documents it writes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ampdoctor.api.request import gate_rules_of
from ampdoctor.config import parse_config
from ampdoctor.diagnose.gate_result import Check
from ampdoctor.diagnose.policy import Policy
from ampdoctor.diagnose.report import Report
from ampdoctor.diagnose.unmeasured import unmeasured
from ampdoctor.diagnose.waivers import Waiver
from ampdoctor.gate.evaluate import evaluate
from ampdoctor.gate.rules import GateRules, Limit
from ampdoctor.render import GATE as FORMATS
from ampdoctor.render import Options
from gate_reports import EMULATED, healthy, layers, limits, loud, overflow

# ---------------------------------------------------------------- from the config


def rules_of(text: str) -> GateRules:
    return gate_rules_of(
        parse_config(f"model: {{target: m.py:m}}\ndata: {{target: m.py:d}}\n{text}", Path("a.yaml"))
    )


def test_defaults_fail_on_errors_and_hold_no_limit() -> None:
    assert rules_of("") == GateRules()


def test_a_limit_that_is_written_holds_even_where_it_is_the_default() -> None:
    text = 'limits: {headroom_bits: 1.0, drift: 0.2, "dec.*": {headroom_bits: 2, lost_gradient: 0.1}}'
    assert rules_of(text).limits == (
        Limit("headroom_bits", "", 1.0),
        Limit("drift", "", 0.2),
        Limit("headroom_bits", "dec.*", 2.0),
        Limit("lost_gradient", "dec.*", 0.1),
    )


def test_the_section_gate() -> None:
    text = "fail_on: [AMP1, warning], scale_in_window: true, allow_headroom_loss: 1, allow_underflow_gain: 0"
    assert rules_of(f"gate: {{{text}}}") == GateRules(("AMP1", "warning"), (), True, 1.0, 0.0)


# ---------------------------------------------------------------- documents


def text_of(*reports: Report) -> str:
    return FORMATS["text"](reports, Options())


def test_the_terminal_says_what_failed_and_by_how_much() -> None:
    assert text_of(evaluate(replace(overflow(), config="t5.yaml"))) == (
        " ampdoctor gate  t5.yaml\n"
        " torch 2.13.0 · cpu, emulating CUDA · float16 autocast · 1 batch\n"
        " FAILED  1 check. OVERFLOW in forward. blocks.1.ff.wo leaves the FP16 range;\n"
        " FP32 is fine.\n"
        " Failed     AMP101 forward overflow: 1.1 % past 65,504   blocks.1.ff.wo\n"
        "            model.py:33\n"
        "              The exact value is 66,246; FP16 ends at 65,504. Only sample 0 of 2\n"
        "              does this.\n"
        f" Note       {EMULATED}\n"
    )


def test_several_configs_make_one_table_and_a_count() -> None:
    passed = replace(evaluate(healthy()), config="a.yaml")
    failed = replace(evaluate(overflow()), config="folder/" + 40 * "b" + ".yaml")
    text = text_of(passed, failed, unmeasured("c.yaml", "there is no c.yaml", "unusable", "0.1.0", "c.yaml"))
    _, _, summary = text.partition(" Summary")
    assert summary == (
        "                         verdict             gate\n"
        "  a.yaml                         clean               PASSED\n"
        "  …bbbbbbbbbbbbbbbbbbbbbbb.yaml  forward-overflow    FAILED  AMP101\n"
        "                                                     blocks.1.ff.wo\n"
        "  c.yaml                         -                   NOT RUN  there is no c.yaml\n"
        "\n"
        " 3 configs: 1 passed, 1 failed, 1 not run.\n"
    )


def test_what_is_accepted_is_counted_in_the_table() -> None:
    waivers = (Waiver("AMP103", "*", "bounded"),)
    waived = evaluate(layers(loud("a", 0.5), loud("b", 0.5), policy=Policy(waivers=waivers)))
    assert "  t5.yaml  clean               PASSED  2 accepted\n" in text_of(waived, evaluate(healthy()))


def test_hostile_names_stay_text() -> None:
    report = layers(loud("[red]x\x1b[31m", 1.5))
    text = text_of(evaluate(report, limits(Limit("headroom_bits", "", 2.0))))
    assert "\x1b" not in text
    assert "[red]x\\x1b[31m" in text


def test_the_json_document_holds_every_report_with_the_gates_word() -> None:
    reports = (evaluate(healthy()), evaluate(overflow()))
    document = json.loads(FORMATS["json"](reports, Options()))
    assert document["schema"] == "ampdoctor.gate/1"
    assert document["status"] == "failed"
    assert [report["gate"]["status"] for report in document["reports"]] == ["passed", "failed"]
    (check,) = document["reports"][1]["gate"]["checks"]
    assert (check["code"], check["by"], check["source"]["line"]) == ("AMP101", "1.1 % past 65,504", 33)


@pytest.mark.parametrize("name", list(FORMATS))
def test_every_format_shows_a_config_that_was_not_measured(name: str) -> None:
    report = unmeasured("c.yaml", "there is no c.yaml", "unusable", "0.1.0", "c.yaml")
    assert "there is no c.yaml" in FORMATS[name]((report,), Options())


def test_a_check_is_about_its_parameter_or_else_its_module() -> None:
    check = Check("drift", "AMP206", "", "head", "", None, "", "", parameter="head.weight")
    assert check.subject == "head.weight"
    assert replace(check, parameter="").subject == "head"

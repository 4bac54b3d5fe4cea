"""The gate: which findings and limits fail it, by how much, and what it says where nothing was measured."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ampdoctor.api.request import gate_rules_of
from ampdoctor.config import parse_config
from ampdoctor.diagnose.engine import diagnose
from ampdoctor.diagnose.gate_result import Check, GateResult, worst_status
from ampdoctor.diagnose.policy import Policy
from ampdoctor.diagnose.report import LossScale, Report
from ampdoctor.diagnose.unmeasured import unmeasured
from ampdoctor.diagnose.waivers import Waiver
from ampdoctor.facts.trace import SiteRecord
from ampdoctor.gate.evaluate import evaluate
from ampdoctor.gate.rules import GateRules, Limit
from ampdoctor.render import GATE as FORMATS
from ampdoctor.render import Options
from trace_builder import birth, candidate, environment, module, parameter, record, reference, trace

EMULATED = "CUDA was emulated on a CPU: no GPU kernel ran (AMP901)."


def healthy(policy: Policy | None = None, **changes: Any) -> Report:
    """One layer with an absmax of 1 and a parameter whose gradient is right."""
    return diagnose(trace(**changes), policy or Policy())


def overflow(**changes: Any) -> Report:
    """blocks.1.ff.wo makes 66,246.1 out of range; the loss and a gradient are NaN."""
    sick = candidate(loss=math.nan, parameters=(parameter("w", nan=100, absmax=None),))
    return healthy(births=(birth(**changes),), passes=(reference(), sick))


def layers(*sites: SiteRecord, policy: Policy | None = None, **changes: Any) -> Report:
    """A clean scan in which these tensors were made."""
    names = dict.fromkeys(site.site.module for site in sites)
    passes = (reference(), candidate(sites=sites, **changes))
    return healthy(policy, modules=tuple(module(name) for name in names), passes=passes)


def loud(name: str, bits: float, **changes: Any) -> SiteRecord:
    """A tensor that is ``bits`` below the end of FP16."""
    return record(name, "aten::mm", 0, 65504 / 2**bits, **changes)


def judged(report: Report, rules: GateRules | None = None) -> GateResult:
    gate = evaluate(report, rules or GateRules()).gate
    assert gate is not None
    return gate


def failures(gate: GateResult) -> list[tuple[str, str, str, str]]:
    return [(c.name, c.code, c.subject, c.by) for c in gate.checks]


def limits(*stated: Limit) -> GateRules:
    return GateRules(limits=stated)


# ---------------------------------------------------------------- findings


def test_a_clean_report_passes_and_says_that_it_was_emulated() -> None:
    gate = judged(healthy())
    assert (gate.status, gate.checks, gate.accepted, gate.gone) == ("passed", (), 0, ())
    assert gate.notes == (EMULATED,)


def test_an_overflow_fails_out_of_the_box_and_says_by_how_much() -> None:
    """66246.1 / 65504 = 1.0113."""
    gate = judged(overflow())
    assert gate.status == "failed"
    assert failures(gate) == [("finding", "AMP101", "blocks.1.ff.wo", "1.1 % past 65,504")]
    (check,) = gate.checks
    assert check.op == "aten::mm"
    assert check.source is not None
    assert check.source.line == 33


@pytest.mark.parametrize(
    ("changes", "by"),
    [
        ({"exact_value": 4 * 65504.0}, "2.0 bits past 65,504"),
        ({"exact_value": None, "reference_value": -131008.0}, "1.0 bits past 65,504"),
        ({"exact_value": None, "reference_value": None}, "18 of 1,536 elements inf"),
    ],
    ids=["twice the range squared", "FP32's value where the exact one is not known", "neither known"],
)
def test_how_much_an_overflow_is_past_the_end(changes: dict[str, Any], by: str) -> None:
    assert [c.by for c in judged(overflow(**changes)).checks] == [by]


@pytest.mark.parametrize(
    ("fail_on", "status"),
    [
        (("error",), "passed"),
        (("warning",), "failed"),
        (("info",), "failed"),
        (("AMP103",), "failed"),
        (("AMP1",), "failed"),
        (("AMP101",), "passed"),
        ((), "passed"),
    ],
)
def test_fail_on_takes_severities_and_codes(fail_on: tuple[str, ...], status: str) -> None:
    """Half a bit of headroom is a warning, AMP103."""
    assert judged(layers(loud("fc", 0.5)), GateRules(fail_on=fail_on)).status == status


@pytest.mark.parametrize(("fail_on", "status"), [(("warning",), "failed"), (("AMP103",), "passed")])
def test_a_severity_means_that_one_or_a_worse(fail_on: tuple[str, ...], status: str) -> None:
    assert judged(overflow(), GateRules(fail_on=fail_on)).status == status


def test_what_fails_is_an_error_in_every_format() -> None:
    report = evaluate(layers(loud("fc", 0.5)), GateRules(fail_on=("warning",)))
    assert [(f.code, f.severity) for f in report.findings] == [("AMP103", "error"), ("AMP901", "info")]


def test_a_waived_finding_does_not_fail() -> None:
    waiver = Waiver("AMP103", "fc", "bounded")
    gate = judged(layers(loud("fc", 0.5), policy=Policy(waivers=(waiver,))), GateRules(fail_on=("info",)))
    assert (gate.status, gate.accepted) == ("failed", 1)
    assert [c.code for c in gate.checks] == ["AMP901"]


def test_passing_with_a_verdict_that_is_not_clean_is_said() -> None:
    policy = Policy(waivers=(Waiver("AMP101", "*", "known"),))
    sick = candidate(loss=math.nan, parameters=(parameter("w", nan=100, absmax=None),))
    gate = judged(healthy(policy, births=(birth(),), passes=(reference(), sick)))
    assert gate.status == "passed"
    assert gate.notes[0].startswith("The verdict is forward-overflow all the same")


# ---------------------------------------------------------------- limits


def test_headroom_at_the_limit_is_kept_and_below_it_is_short() -> None:
    report = layers(loud("enc.0", 2.0), loud("dec.0", 2.0), loud("dec.1", 1.5))
    gate = judged(report, limits(Limit("headroom_bits", "dec.*", 2.0)))
    assert failures(gate) == [("headroom_bits", "AMP103", "dec.1", "0.5 bits short")]
    (check,) = gate.checks
    assert check.message == (
        '1.5 bits of headroom, where limits."dec.*".headroom_bits asks for 2: 0.5 bits short.'
    )
    assert check.measured == pytest.approx(1.5)
    assert check.limit == 2.0


def test_of_limits_that_fit_a_module_the_last_one_holds() -> None:
    report = layers(loud("a", 1.5), loud("b", 1.5))
    everywhere, own = Limit("headroom_bits", "", 2.0), Limit("headroom_bits", "b", 1.0)
    assert [c.module for c in judged(report, limits(everywhere, own)).checks] == ["a"]


def test_the_worst_broken_limit_comes_first() -> None:
    report = layers(loud("a", 1.5), loud("b", 1.25))
    gate = judged(report, limits(Limit("headroom_bits", "", 2.0)))
    assert [(c.module, c.by) for c in gate.checks] == [("b", "0.8 bits short"), ("a", "0.5 bits short")]


def test_an_fp32_layer_and_one_that_overflows_have_no_headroom_to_check() -> None:
    wide = record("wide", "aten::softmax", 1, 1e6, dtype="float32")
    sites = (wide, record("blocks.1.ff.wo", "aten::mm", 2, 65000.0, inf=1))
    report = healthy(
        modules=(module("wide"), module("blocks.1.ff.wo")),
        births=(birth(),),
        passes=(reference(), candidate(loss=math.nan, sites=sites)),
    )
    gate = judged(report, limits(Limit("headroom_bits", "", 2.0)))
    assert [(c.name, c.code) for c in gate.checks] == [("finding", "AMP101")]


def test_underflow_of_a_layer() -> None:
    """A cast zeroed 4 of 16 elements that were not zero before it."""
    cast = record("fc", "aten::_to_copy", 5, 1.0, phase="backward", numel=16, flushed=4, zeros=4)
    calm = record("head", "aten::_to_copy", 6, 1.0, phase="backward", numel=16, flushed=0)
    gate = judged(layers(cast, calm), limits(Limit("gradient_underflow", "*", 0.2)))
    assert failures(gate) == [("gradient_underflow", "AMP203", "fc", "5.0 % too much")]


def test_underflow_everywhere_is_about_the_gradient_as_a_whole() -> None:
    """3 of all 200 elements are lost, though one parameter loses 3 %."""
    parameters = (parameter("a", lost=3, relative_error=0.01), parameter("b"))
    report = healthy(passes=(reference(), candidate(sites=(loud("fc", 9),), parameters=parameters)))
    assert judged(report, limits(Limit("gradient_underflow", "", 0.015))).status == "passed"
    gate = judged(report, limits(Limit("gradient_underflow", "", 0.01)))
    assert failures(gate) == [("gradient_underflow", "AMP203", "", "0.5 % too much")]


@pytest.mark.parametrize("glob", ["head", "head.*", "*", ""])
@pytest.mark.parametrize(
    ("name", "code", "by"),
    [("lost_gradient", "AMP203", "10.0 % too much"), ("drift", "AMP206", "2.0 % too far")],
)
def test_lost_gradient_and_drift_of_a_parameter(name: str, code: str, by: str, glob: str) -> None:
    parameters = (parameter("head.weight", lost=20, relative_error=0.12), parameter("fc.weight"))
    report = healthy(passes=(reference(), candidate(sites=(loud("fc", 9),), parameters=parameters)))
    gate = judged(report, limits(Limit(name, glob, 0.1)))
    assert failures(gate) == [(name, code, "head.weight", by)]
    assert gate.checks[0].module == "head"


def test_a_gradient_that_is_noise_drifts_from_nothing() -> None:
    """The bias's gradient is a millionth of its module's largest."""
    noise = parameter("fc.bias", reference_absmax=1e-7, lost=90, relative_error=3.0)
    parameters = (parameter("fc.weight", reference_absmax=1.0), noise)
    report = healthy(passes=(reference(), candidate(sites=(loud("fc", 9),), parameters=parameters)))
    stated = limits(Limit("drift", "", 0.1), Limit("lost_gradient", "fc.bias", 0.1))
    assert judged(report, stated).status == "passed"


def test_a_broken_limit_becomes_a_finding_in_every_format() -> None:
    report = evaluate(layers(loud("fc", 1.5)), limits(Limit("headroom_bits", "", 2.0)))
    finding = report.findings[0]
    assert (finding.code, finding.severity, finding.module) == ("AMP103", "error", "fc")
    assert finding.title == "less headroom than the limit"
    assert finding.evidence["limit"] == 2.0


def test_a_finding_that_says_it_already_is_raised_instead() -> None:
    report = evaluate(layers(loud("fc", 0.5)), limits(Limit("headroom_bits", "", 1.0)))
    assert [(f.code, f.severity, f.title) for f in report.findings] == [
        ("AMP103", "error", "thin headroom"),
        ("AMP901", "info", "measured on a CPU"),
    ]
    assert report.gate is not None
    (check,) = report.gate.checks
    assert check.source is not None  # the finding's: the layer table knows no lines
    assert check.op == "aten::mm"


def test_one_fault_is_one_check() -> None:
    rules = GateRules(fail_on=("warning",), limits=(Limit("headroom_bits", "", 1.0),))
    assert [(c.name, c.code) for c in judged(layers(loud("fc", 0.5)), rules).checks] == [
        ("finding", "AMP103")
    ]


@pytest.mark.parametrize("module_glob", ["*", "fc"])
def test_a_waiver_for_the_rule_covers_the_limit_and_is_in_use(module_glob: str) -> None:
    report = layers(loud("fc", 1.5), policy=Policy(waivers=(Waiver("AMP103", module_glob, "bounded"),)))
    assert [w.state for w in report.waivers] == ["unused"]
    result = evaluate(report, limits(Limit("headroom_bits", "", 2.0)))
    assert result.gate is not None
    assert (result.gate.status, result.gate.accepted) == ("passed", 1)
    assert [(w.state, w.matches) for w in result.waivers] == [("used", 1)]


def test_an_expired_waiver_covers_nothing() -> None:
    waiver = Waiver("AMP103", "*", "bounded", "2026-01-31")
    report = layers(loud("fc", 1.5), policy=Policy(waivers=(waiver,), today="2026-02-01"))
    result = evaluate(report, limits(Limit("headroom_bits", "", 2.0)))
    assert result.gate is not None
    assert result.gate.status == "failed"
    assert [(w.state, w.matches) for w in result.waivers] == [("expired", 1)]


# ---------------------------------------------------------------- the loss scale


@pytest.mark.parametrize(
    ("configured", "by"),
    [(16.0, None), (1024.0, None), (2048.0, "1.0 bits too high"), (4.0, "2.0 bits too low")],
)
def test_the_scale_in_its_window(configured: float, by: str | None) -> None:
    found = LossScale(configured=configured, window=(16.0, 1024.0), searched=True)
    gate = judged(replace(healthy(), loss_scale=found), GateRules(scale_in_window=True))
    assert failures(gate) == ([] if by is None else [("scale_in_window", "AMP205", "", by)])


def test_without_a_window_no_scale_is_in_it() -> None:
    found = LossScale(configured=65536.0, searched=True)
    gate = judged(replace(healthy(), loss_scale=found), GateRules(scale_in_window=True))
    assert failures(gate) == [("scale_in_window", "AMP205", "", "no scale works")]


# ---------------------------------------------------------------- nothing measured


def test_nothing_measured_is_never_green() -> None:
    gate = judged(healthy(passes=()))
    assert gate.status == "not-measured"
    assert gate.reason == "No op that makes floating-point numbers ran."


def test_an_interrupted_scan_is_not_judged() -> None:
    gate = judged(healthy(interrupted=True))
    assert (gate.status, gate.checks) == ("not-measured", ())
    assert "interrupted" in gate.reason


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        (Limit("headroom_bits", "f", 2.0), 'limits."f".headroom_bits names nothing that was measured'),
        (Limit("drift", "", 0.1), "limits.drift: no gradient was measured"),
        (Limit("gradient_underflow", "", 0.1), "limits.gradient_underflow: no gradient was measured"),
        (
            Limit("gradient_underflow", "fc", 0.1),
            'limits."fc".gradient_underflow: no gradient was measured there',
        ),
    ],
    ids=["no such module", "no gradient at all", "none as a whole", "none in a layer"],
)
def test_a_limit_that_nothing_could_be_held_against_is_not_green(limit: Limit, message: str) -> None:
    forward_only = healthy(
        environment=environment(forward_only=True),
        passes=(
            reference(parameters=(), loss=None),
            candidate(parameters=(), loss=None, sites=(loud("fc", 9),)),
        ),
    )
    gate = judged(forward_only, limits(limit))
    assert gate.status == "not-measured"
    assert [(c.message, c.by, c.measured) for c in gate.checks] == [(message, "not measured", None)]


def test_a_window_that_was_not_looked_for_is_not_green() -> None:
    gate = judged(healthy(), GateRules(scale_in_window=True))
    assert gate.status == "not-measured"
    assert [c.name for c in gate.checks] == ["scale_in_window"]


def test_what_failed_counts_before_what_could_not_be_checked() -> None:
    gate = judged(overflow(), limits(Limit("headroom_bits", "decodr.*", 2.0)))
    assert gate.status == "failed"
    assert [c.code for c in gate.checks] == ["AMP101"]


@pytest.mark.parametrize(
    ("statuses", "worst"),
    [
        (["passed", "passed"], "passed"),
        (["passed", "failed"], "failed"),
        (["not-measured", "failed"], "not-measured"),
        (["unusable", "not-measured", "failed", "passed"], "unusable"),
        ([], "not-measured"),
    ],
)
def test_the_worst_of_several_decides(statuses: list[str], worst: str) -> None:
    assert worst_status(statuses) == worst


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

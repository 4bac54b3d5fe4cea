"""The gate: which findings and limits fail it, by how much, and what it says where nothing was measured."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from ampdoctor.diagnose.gate_result import worst_status
from ampdoctor.diagnose.policy import Policy
from ampdoctor.diagnose.report import LossScale
from ampdoctor.diagnose.waivers import Waiver
from ampdoctor.gate.evaluate import evaluate
from ampdoctor.gate.rules import GateRules, Limit
from gate_reports import EMULATED, failures, healthy, judged, layers, limits, loud, overflow
from trace_builder import birth, candidate, environment, module, parameter, record, reference

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

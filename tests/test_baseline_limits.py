"""Layers and limits next to a baseline, and what it does not hold."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from ampdoctor.diagnose.engine import diagnose
from ampdoctor.diagnose.policy import Policy
from ampdoctor.diagnose.report import LossScale
from ampdoctor.diagnose.waivers import Waiver
from ampdoctor.gate.baseline import KnownLayer, KnownLimit
from ampdoctor.gate.evaluate import evaluate
from ampdoctor.gate.rules import GateRules, Limit
from ampdoctor.store.baselines import dump, parse
from baseline_reports import KNOWN, against, failures, known, layer, overflow
from trace_builder import (
    birth,
    candidate,
    environment,
    module,
    record,
    reference,
    trace,
)

# ---------------------------------------------------------------- layers


@pytest.mark.parametrize(
    ("before", "now", "by"),
    [
        (4.0, 3.5, ""),
        (4.0, 3.4, "0.6 bits lost, 0.5 allowed"),
        (4.0, 6.0, ""),
    ],
    ids=["as much as allowed", "more", "gained"],
)
def test_headroom_lost_against_the_baseline(before: float, now: float, by: str) -> None:
    gate = against(layer(before), layer(now))
    assert failures(gate) == ([("headroom_loss", "fc", by)] if by else [])


def test_a_loss_of_headroom_is_a_finding_in_every_format() -> None:
    report = evaluate(layer(3.0), GateRules(), known(layer(4.0)), "b.json")
    found = report.findings[0]
    assert (found.code, found.severity, found.module) == ("AMP103", "error", "fc")
    assert found.message == ("3.0 bits of headroom, 4.0 in the baseline: 1.0 bits lost, 0.5 allowed.")


@pytest.mark.parametrize(
    ("before", "now", "by"),
    [(100, 150, ""), (100, 160, "6.0 % more, 5.0 % allowed"), (100, 0, "")],
    ids=["as much as allowed", "more", "less"],
)
def test_underflow_gained_against_the_baseline(before: int, now: int, by: str) -> None:
    gate = against(layer(9, before), layer(9, now))
    assert failures(gate) == ([("underflow_gain", "fc", by)] if by else [])


def test_a_waiver_covers_lost_headroom() -> None:
    sites = (record("fc", "aten::mm", 0, 65504 / 8),)
    passes = (reference(), candidate(sites=sites))
    now = diagnose(trace(passes=passes), Policy(waivers=(Waiver("AMP103", "fc", "wider now"),)))
    gate = against(layer(4.0), now)
    assert (gate.status, gate.accepted) == ("passed", 1)


def test_layers_that_are_new_or_gone_fail_nothing() -> None:
    before = replace(known(layer(4.0)), layers={"old": KnownLayer(9.0), "fc": KnownLayer(4.0)})
    gate = evaluate(layer(4.0), GateRules(), before, "b.json").gate
    assert gate is not None
    assert (gate.status, gate.gone) == ("passed", ("1 layer: old",))


# ---------------------------------------------------------------- limits


@pytest.mark.parametrize(("now", "status"), [(1.5, "passed"), (1.1, "passed"), (0.9, "failed")])
def test_a_limit_that_was_broken_already_may_not_get_worse(now: float, status: str) -> None:
    rules = GateRules(limits=(Limit("headroom_bits", "", 2.0),))
    assert against(layer(1.5), layer(now), rules).status == status


def test_a_known_finding_does_not_hide_that_its_layer_broke_a_limit() -> None:
    """The warning was accepted; the limit, which is newer than the baseline, was not."""
    before = known(layer(0.5), GateRules(fail_on=("warning",)))
    rules = GateRules(fail_on=("warning",), limits=(Limit("headroom_bits", "fc", 2.0),))
    report = evaluate(layer(0.5), rules, before, "b.json")
    assert report.gate is not None
    assert failures(report.gate) == [("headroom_bits", "fc", "1.5 bits short")]
    assert [(f.title, f.severity) for f in report.findings if f.code == "AMP103"] == [
        ("less headroom than the limit", "error"),
        ("thin headroom", "info"),
    ]


def test_a_limit_that_was_kept_and_is_broken_now_fails() -> None:
    rules = GateRules(limits=(Limit("headroom_bits", "", 2.0),), allow_headroom_loss=9)
    assert failures(against(layer(2.5), layer(1.5), rules)) == [("headroom_bits", "fc", "0.5 bits short")]


def test_a_limit_that_could_not_be_checked_before_need_not_be_now() -> None:
    rules = GateRules(scale_in_window=True)
    assert known(layer(4.0), rules).limits == (KnownLimit("scale_in_window", ""),)
    assert against(layer(4.0), layer(4.0), rules).status == "passed"


def test_no_window_then_and_no_window_now() -> None:
    rules = GateRules(scale_in_window=True)
    report = replace(layer(4.0), loss_scale=LossScale(configured=1.0, searched=True))
    assert parse(dump({"a": known(report, rules)}).encode())["a"].limits[0].measured == math.inf
    assert against(report, report, rules).status == "passed"


def test_a_limit_that_is_kept_again_is_gone() -> None:
    rules = GateRules(limits=(Limit("headroom_bits", "", 2.0),))
    assert against(layer(1.5), layer(3.0), rules).gone == ("headroom_bits of fc, which is kept now",)


# ---------------------------------------------------------------- what is not in it


def test_waived_findings_and_information_are_not_written_down() -> None:
    policy = Policy(waivers=(Waiver("AMP101", "*", "known"),))
    assert known(overflow(birth(), policy=policy)).findings == ()


def test_a_layer_that_overflows_has_no_headroom_to_write_down() -> None:
    sites = (record("blocks.1.ff.wo", "aten::mm", 0, 65000.0, inf=1), record("fc", "aten::mm", 1, 4094.0))
    report = diagnose(
        trace(
            modules=(module("blocks.1.ff.wo"), module("fc")),
            births=(birth(),),
            passes=(reference(), candidate(loss=math.nan, sites=sites)),
        )
    )
    assert known(report).layers == {"fc": KnownLayer(4.0)}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"torch_version": "2.14.0+cpu"}, "The baseline was measured with torch 2.13.0."),
        (
            {"device": "cuda:0", "emulates": None, "loss_scale": 1024.0},
            "The baseline was measured with cpu, emulating CUDA, loss scale 65,536.",
        ),
        ({"scaler": "dynamic"}, "The baseline was measured with loss scale 65,536."),
        ({"dtype": "bfloat16"}, "The baseline was measured with FP16 autocast."),
    ],
    ids=["the same", "another torch", "a GPU and another scale", "a scaler", "another format"],
)
def test_a_baseline_from_elsewhere_is_said_to_be(changes: dict[str, Any], words: str) -> None:
    now = replace(layer(4.0), environment=environment(**changes))
    gate = against(layer(4.0), now)
    assert [note for note in gate.notes if "baseline" in note] == ([words] if words else [])


def test_a_gate_reads_amounts_and_no_evidence() -> None:
    """What a rule writes into the evidence is for people."""
    report = overflow(birth(**KNOWN), birth("blocks.2.ff.wo", id=1, order=11, exact_value=None))
    mute = replace(report, findings=tuple(replace(f, evidence={}) for f in report.findings))
    judged, without = evaluate(report).gate, evaluate(mute).gate
    assert judged is not None
    assert judged == without
    assert [c.by for c in judged.checks][:1] == ["1.0 bits past 65,504"]
    assert known(report) == known(mute)

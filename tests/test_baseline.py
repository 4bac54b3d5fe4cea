"""Baselines: the file, what makes a finding the same one, and what counts as worse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ampdoctor.cli.baselines import section_of
from ampdoctor.diagnose.amounts import Amounts
from ampdoctor.diagnose.gate_result import Accepted
from ampdoctor.diagnose.report import Finding
from ampdoctor.facts.site import Site, Source
from ampdoctor.gate.baseline import Known, key_of
from ampdoctor.gate.evaluate import evaluate
from ampdoctor.gate.rules import GateRules, Limit
from ampdoctor.store.baselines import dump, parse
from ampdoctor.store.codec import FileError
from baseline_reports import KNOWN, against, failures, known, layer, overflow
from trace_builder import (
    birth,
    source,
)

# ---------------------------------------------------------------- the file


TEXT = """\
{
  "schema": "ampdoctor.baseline/1",
  "configs": {
    "a.yaml": {
      "run": {"device": "cpu", "emulates": "cuda", "mode": "autocast", "dtype": "float16", \
"loss_scale": 65536.0, "torch": "2.13.0", "scaler": "fixed"},
      "findings": [
        {"code": "AMP101", "module": "blocks.1.ff.wo", "op": "aten::mm", "line": "return self.wo(h)", \
"severity": "error", "places": 1, "overflow_bits": 0.0, "share": 0.0117}
      ],
      "limits": [
        {"limit": "headroom_bits", "subject": "fc", "measured": 4.0}
      ],
      "layers": {
        "fc": {"headroom_bits": 4.0}
      }
    },
    "b.yaml": {
      "run": {"device": "cpu", "emulates": "cuda", "mode": "autocast", "dtype": "float16", \
"loss_scale": 65536.0, "torch": "2.13.0", "scaler": "fixed"},
      "findings": [],
      "limits": [],
      "layers": {
        "fc": {"headroom_bits": 2.3, "underflow": 0.25}
      }
    }
  }
}
"""
"""log2(66246.1 / 65504) is 0.016; 18 of 1536 elements are bad; 65504 / 4094 is 16; 250 of 1000 are zeroed."""


def sections() -> dict[str, Known]:
    sick = known(overflow(birth()), GateRules(limits=(Limit("headroom_bits", "fc", 5.0),)))
    return {"b.yaml": known(layer(2.345, underflow=250)), "a.yaml": sick}


def test_the_file_is_sorted_rounded_and_has_a_line_for_each_finding_and_layer() -> None:
    assert dump(sections()) == TEXT


def test_what_is_written_is_read_back() -> None:
    assert parse(TEXT.encode()) == sections()


def test_the_order_of_findings_is_that_of_their_keys_not_of_the_run() -> None:
    first, second = birth("b", id=0), birth("a", id=1, order=11)
    assert [f.module for f in known(overflow(first, second)).findings] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "<<<<<<< HEAD\n{}",
            "is not a baseline: it holds no readable JSON (expected value at line 1 column 1)",
        ),
        ("[]", 'is not a baseline ("ampdoctor.baseline/1" was expected): it has no "schema"'),
        (
            '{"schema": "ampdoctor.trace/1"}',
            'is not a baseline ("ampdoctor.baseline/1" was expected): its "schema" is \'ampdoctor.trace/1\'',
        ),
        (
            '{"schema": "ampdoctor.baseline/2"}',
            'is a baseline of another version ("ampdoctor.baseline/2"); '
            'this ampdoctor reads "ampdoctor.baseline/1"',
        ),
        ('{"schema": "ampdoctor.baseline/1"}', "is damaged: configs is missing"),
        (
            '{"schema": "ampdoctor.baseline/1", "configs": {"a.yaml": {}}}',
            'is damaged: configs."a.yaml".run is missing',
        ),
        (
            TEXT.replace('"headroom_bits": 2.3', '"headroom_bits": "much"'),
            'is damaged: configs."b.yaml".layers.fc.headroom_bits should be a number',
        ),
    ],
    ids=["merge conflict", "foreign", "a trace", "newer", "no configs", "no run", "wrong type"],
)
def test_a_file_that_cannot_be_used_says_why(text: str, reason: str) -> None:
    with pytest.raises(FileError) as refused:
        parse(text.encode())
    assert str(refused.value) == reason


@pytest.mark.parametrize(
    ("config", "baseline", "section"),
    [
        ("a.yaml", "ampdoctor-baseline.json", "a.yaml"),
        ("configs/a.yaml", "configs/ampdoctor-baseline.json", "a.yaml"),
        ("configs/a.yaml", "ampdoctor-baseline.json", "configs/a.yaml"),
        ("a.yaml", "ci/baseline.json", "../a.yaml"),
        (None, "ampdoctor-baseline.json", "title"),
    ],
)
def test_a_section_is_named_by_the_configs_path_from_the_file(
    config: str | None, baseline: str, section: str
) -> None:
    assert section_of(Path(config) if config else None, "title", Path(baseline)) == section


# ---------------------------------------------------------------- the same finding


def finding(**changes: Any) -> Finding:
    (found,) = [f for f in overflow(birth(**changes)).findings if f.code == "AMP101"]
    return found


def line_of(text: str, line: int = 33, function: str = "forward", file: str = "model.py") -> Source:
    return Source(file, line, text, function)


@pytest.mark.parametrize(
    "changes",
    [
        {"source": source(line=90)},
        {"source": line_of("return  self.wo(h)  ")},
        {"source": line_of("return self.wo(h)", file="moved.py", function="helper")},
        {"site": Site("forward", "blocks.1.ff.wo", "aten::mm", 7)},
        {"order": 99, "index": (1, 1, 1), "batch": 0},
    ],
    ids=["moved line", "other spaces", "moved to a helper", "renumbered call", "another element"],
)
def test_what_leaves_a_finding_the_one_it_was(changes: dict[str, Any]) -> None:
    assert key_of(finding(**changes)) == key_of(finding())
    gate = against(overflow(birth()), overflow(birth(**changes)))
    assert (gate.status, gate.gone) == ("passed", ())


@pytest.mark.parametrize(
    "changes",
    [
        {"module": "blocks.2.ff.wo"},
        {"op": "aten::add"},
        {"source": line_of("return self.wo(2 * h)")},
    ],
    ids=["module", "op", "line"],
)
def test_what_makes_a_finding_a_new_one(changes: dict[str, Any]) -> None:
    gate = against(overflow(birth()), overflow(birth(**changes)))
    assert gate.status == "failed"
    assert [c.name for c in gate.checks] == ["finding"]
    assert gate.gone == ("AMP101 in blocks.1.ff.wo (return self.wo(h))",)


def test_a_line_whose_text_is_not_known_is_told_by_its_function() -> None:
    assert key_of(finding(source=line_of(""))) == ("AMP101", "blocks.1.ff.wo", "aten::mm", "forward")
    assert key_of(finding(source=None)) == ("AMP101", "blocks.1.ff.wo", "aten::mm", "")


def test_a_tensor_without_a_line_is_told_by_its_name() -> None:
    batch = overflow(birth())
    for name in ("x", "y"):
        named = replace(finding(source=None), code="AMP105", module="", op="", tensor=name)
        batch = replace(batch, findings=(*batch.findings, named))
    assert [k.line for k in known(batch).findings if k.code == "AMP105"] == ["x", "y"]


def test_a_known_finding_passes_and_is_information_in_every_format() -> None:
    report = evaluate(overflow(birth()), GateRules(), known(overflow(birth())), "b.json")
    assert report.gate is not None
    assert (report.gate.status, report.gate.accepted, report.gate.baseline) == ("passed", 1, "b.json")
    (found,) = [f for f in report.findings if f.code == "AMP101"]
    assert (found.severity, found.accepted) == ("info", Accepted("baseline", "error"))


def test_a_new_finding_next_to_a_known_one_fails() -> None:
    now = overflow(birth(), birth("blocks.2.ff.wo", id=1, order=11))
    gate = against(overflow(birth()), now)
    assert [(c.name, c.module) for c in gate.checks] == [("finding", "blocks.2.ff.wo")]
    assert gate.accepted == 1


def test_a_new_warning_fails_where_warnings_fail() -> None:
    clean, thin = layer(3.0), layer(0.5)
    rules = GateRules(fail_on=("warning",), allow_headroom_loss=9)
    assert failures(against(clean, thin, rules)) == [("finding", "fc", "0.5 bits left, 1 asked for")]
    assert against(clean, thin, GateRules(allow_headroom_loss=9)).status == "passed"


# ---------------------------------------------------------------- a worse one


@pytest.mark.parametrize(
    ("changes", "by"),
    [
        ({"exact_value": 2**1.5 * 65504.0}, ""),
        ({"exact_value": 2**1.6 * 65504.0}, "1.6 bits past the format's end instead of 1.0"),
        ({"count": 32}, ""),
        ({"count": 48}, "in 3.1 % of the elements instead of 1.0 %"),
        ({"exact_value": 1.1 * 65504.0, "count": 1}, ""),
    ],
    ids=["half a bit further", "more than that", "twice the elements", "more than that", "better"],
)
def test_a_known_overflow_that_grew_fails(changes: dict[str, Any], by: str) -> None:
    gate = against(overflow(birth(**KNOWN)), overflow(birth(**(KNOWN | changes))))
    assert failures(gate) == ([("worse", "blocks.1.ff.wo", by)] if by else [])


def test_the_same_line_in_more_places_fails() -> None:
    """Two findings that differ in their line number only."""
    twice = overflow(birth(), birth(id=1, order=11, source=source(line=50)))
    gate = against(overflow(birth()), twice)
    assert failures(gate) == [("worse", "blocks.1.ff.wo", "in 2 places instead of 1")]
    assert against(twice, twice).status == "passed"
    assert against(twice, overflow(birth())).status == "passed"


def test_a_finding_that_weighs_more_fails() -> None:
    """One lost gradient: a warning next to an overflow, an error where it is the verdict."""
    report = overflow(birth())
    as_warning = replace(
        report, findings=tuple(replace(f, severity="warning") for f in report.findings if f.code == "AMP101")
    )
    gate = against(as_warning, report)
    assert failures(gate) == [("worse", "blocks.1.ff.wo", "error instead of warning")]


@pytest.mark.parametrize(
    ("amounts", "worse", "by"),
    [
        ({"lost": 0.3}, {"lost": 0.4}, "40.0 % of the gradient lost instead of 30.0 %"),
        ({"drift": 0.3}, {"drift": 0.5}, "50.0 % off FP32 instead of 30.0 %"),
        (
            {"scale_bits": 1.0},
            {"scale_bits": 2.0},
            "2.0 bits outside the window instead of 1.0",
        ),
        ({"headroom_bits": 0.9}, {"headroom_bits": 0.3}, "0.3 bits of headroom instead of 0.9"),
    ],
    ids=["lost gradient", "drift", "loss scale", "headroom"],
)
def test_every_measure_of_a_finding_counts(
    amounts: dict[str, float], worse: dict[str, float], by: str
) -> None:
    report = overflow(birth())
    before = replace(report, findings=(replace(finding(), amounts=Amounts(**amounts)),))
    now = replace(report, findings=(replace(finding(), amounts=Amounts(**worse)),))
    assert [c.by for c in against(before, now).checks] == [by]
    assert against(now, before).status == "passed"

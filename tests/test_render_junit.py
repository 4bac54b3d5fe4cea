"""JUnit XML: read back with junitparser, as a CI service would."""

from __future__ import annotations

import sys
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from ampdoctor.diagnose.gate_result import PASSED
from ampdoctor.diagnose.headline import Headline
from ampdoctor.diagnose.report import Report
from ampdoctor.errors import ConfigError
from ampdoctor.render import FORMATS, MANY, Options
from hostile import NAMES, REPOSITORY, accepted, clean, failing, gated, many, sick, unchecked, without_source

OPTIONS = Options(base=f"{REPOSITORY}/sub", root=REPOSITORY)


def suites(*reports: Report) -> list[TestSuite]:
    return list(JUnitXml.fromstring(MANY["junit"](reports, OPTIONS).encode()))


def cases(report: Report) -> dict[str, TestCase]:
    """The only suite's cases by name."""
    (suite,) = suites(report)
    return {case.name: case for case in suite}


def test_what_was_found_fails_and_every_other_rule_passes() -> None:
    (suite,) = suites(sick())
    assert (suite.name, suite.tests, suite.failures, suite.errors, suite.skipped) == (
        "sub/t5.yaml", len(sick().rules), 1, 0, 0,
    )  # fmt: skip
    case = next(iter(suite))
    assert (case.classname, case.name) == ("sub/t5.yaml.AMP101", "forward overflow in blocks.1.ff.wo")
    (failure,) = case.result
    assert isinstance(failure, Failure)
    assert failure.type == "AMP101"
    assert failure.message == (
        "The exact value is 66,246; FP16 ends at 65,504. Only sample 0 of 2 does this."
    )
    assert failure.text.splitlines()[:3] == [
        "error AMP101 forward overflow",
        "blocks.1.ff.wo   aten::mm",
        "src/model.py:33   return self.wo(h)",
    ]


def test_a_clean_report_has_a_passing_case_per_rule_that_ran() -> None:
    (suite,) = suites(clean())
    assert [case.classname for case in suite] == [f"healthy.yaml.{code}" for code in clean().rules]
    assert all(case.is_passed for case in suite)


def test_a_report_without_rules_is_no_empty_suite() -> None:
    bare = replace(clean(), rules=(), findings=())
    (case,) = cases(bare).values()
    assert (case.name, case.is_passed) == ("the measurement", True)


def test_nothing_measured_is_an_error_and_no_rule_passes() -> None:
    nothing = replace(
        clean(), verdict="not-measured", headline=Headline("NOT MEASURED.", "Nothing ran."), findings=()
    )
    (case,) = cases(nothing).values()
    (error,) = case.result
    assert isinstance(error, Error)
    assert error.message == "NOT MEASURED. Nothing ran."


def test_an_interruption_is_an_error() -> None:
    assert cases(replace(clean(), interrupted=True))["the measurement"].is_error


def test_the_suite_takes_as_long_as_the_scan() -> None:
    (suite,) = suites(sick())
    assert suite.time == 1.9


def test_each_report_is_a_suite_even_where_names_agree() -> None:
    first, second, third = suites(sick(), sick(), clean())
    assert (first.name, second.name, third.name) == ("sub/t5.yaml", "sub/t5.yaml", "healthy.yaml")
    assert len(first) == len(second) == len(sick().rules)


def test_two_findings_of_a_rule_in_a_module_are_one_case() -> None:
    double = sick()
    other = replace(double.findings[0], op="aten::add", message="Again.")
    double = replace(double, findings=(*double.findings, other))
    case = cases(double)["forward overflow in blocks.1.ff.wo"]
    (failure,) = case.result
    assert failure.text.count("error AMP101") == 2
    assert "\nAgain.\n" in failure.text


def test_a_case_per_module() -> None:
    assert sum(case.is_failure for case in cases(many(12)).values()) == 12


def test_a_warning_is_skipped_with_its_words() -> None:
    warned = replace(sick(), findings=(replace(sick().findings[0], severity="warning"),))
    case = cases(warned)["forward overflow in blocks.1.ff.wo"]
    (skipped,) = case.result
    assert isinstance(skipped, Skipped)
    assert skipped.message.startswith("warning: The exact value is 66,246")


def test_information_passes_and_is_told() -> None:
    case = cases(clean())["measured on a CPU"]
    assert case.is_passed
    assert "CUDA's autocast policy and rounding were emulated" in case.system_out


def test_a_gate_decides_what_fails() -> None:
    name = "forward overflow in blocks.1.ff.wo"
    assert cases(gated(sick(), PASSED))[name].is_passed
    assert cases(failing(sick()))[name].is_failure


def test_what_a_gate_could_not_check_is_an_error() -> None:
    (result,) = cases(unchecked())["a gradient drifts from the reference in fc"].result
    assert isinstance(result, Error)
    assert result.message == "There is no reference."


def test_an_accepted_finding_is_skipped_with_the_reason() -> None:
    (result,) = cases(accepted())["forward overflow in blocks.1.ff.wo"].result
    assert isinstance(result, Skipped)
    assert result.message == "accepted by the waiver: known since May"


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_name_stays_what_it_is(name: str) -> None:
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
    document = FORMATS["junit"](sick(name), OPTIONS)
    root = ElementTree.fromstring(document.encode())
    assert f"forward overflow in {shown}" in [case.get("name") for case in root.iter("testcase")]


def test_a_line_nobody_knows_is_left_out() -> None:
    case = cases(without_source())["forward overflow in blocks.1.ff.wo"]
    assert case.result[0].text.splitlines()[1:3] == [
        "blocks.1.ff.wo   aten::mm",
        "The exact value is 66,246; FP16 ends at 65,504. Only sample 0 of 2 does this.",
    ]


def test_without_junitparser_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "junitparser", None)
    with pytest.raises(ConfigError) as caught:
        FORMATS["junit"](clean(), OPTIONS)
    assert caught.value.hint == 'pip install "ampdoctor[junit]" brings it'

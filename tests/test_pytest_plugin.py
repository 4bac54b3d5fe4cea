"""The fixture ``amp_check`` and its marker, in a project of their own: one run, looked at test by test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from xml.etree import ElementTree

import pytest

PROJECT = """
import pytest
import torch

def times(weight):
    model = torch.nn.Sequential()
    model.add_module("fc", torch.nn.Linear(1, 1, bias=False))
    torch.nn.init.constant_(model.fc.weight, weight)
    return model

X = torch.full((4, 1), 256.0)

def mean(model, batch):
    return model(batch).float().mean()

pytestmark = pytest.mark.amp_limits(device="cpu", loss_scale=1.0)

OVERFLOWS = times(256.0)  # 65,536, just past the end of FP16
THIN = times(64.0)  # 16,384: log2(65504 / 16384) is just below 2 bits of headroom

def test_passes(amp_check):
    report = amp_check(THIN, X, mean)
    assert (report.verdict, report.gate.status) == ("clean", "passed")

def test_overflows(amp_check):
    amp_check(OVERFLOWS, X, mean)

def test_breaks_a_limit(amp_check):
    amp_check(THIN, X, mean, headroom_bits=2)

@pytest.mark.amp_limits(headroom_bits=2)
class TestMarker:
    def test_of_the_class(self, amp_check):
        amp_check(THIN, X, mean)

    @pytest.mark.amp_limits(headroom_bits=1.5, dtype="bfloat16")
    def test_of_the_function_comes_before_the_class(self, amp_check):
        report = amp_check(THIN, X, mean)
        assert (report.environment.dtype, report.environment.loss_scale) == ("bfloat16", 1.0)

    def test_of_the_call_comes_before_all(self, amp_check):
        amp_check(THIN, X, mean, headroom_bits=1.5)

@pytest.mark.amp_limits(2)
def test_marker_without_keywords(amp_check):
    amp_check(THIN, X, mean)

def test_limit_of_the_module(amp_check):
    amp_check(THIN, X, mean, limits={"f*": {"headroom_bits": 2}})

def test_limit_that_names_nothing(amp_check):
    amp_check(THIN, X, mean, limits={"g*": {"headroom_bits": 2}})

def test_fails_on_a_code(amp_check):
    amp_check(THIN, X, mean, fail_on=["AMP901"])

def test_the_fault_is_waived(amp_check):
    waiver = {"code": "AMP101", "module": "fc", "reason": "known"}
    report = amp_check(OVERFLOWS, X, mean, rules={"waivers": [waiver]})
    assert (report.verdict, report.gate.accepted) == ("forward-overflow", 1)

def test_measures_nothing(amp_check):
    amp_check(torch.nn.Identity(), torch.arange(3), "none")

def test_misspelled_limit(amp_check):
    amp_check(THIN, X, mean, headrom_bits=2)

def broken(model, batch):
    raise KeyError("labels")

def test_fails_in_fp32(amp_check):
    amp_check(THIN, X, broken)
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """{test of the project: '' for one that passed, else what pytest shows of its failure}."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "test_model.py").write_text(PROJECT)
    done = run_pytest(folder, "-p", "ampdoctor.pytest_plugin", "--strict-markers", "--junitxml=out.xml")
    assert done.returncode == 1, done.stdout + done.stderr
    cases = ElementTree.parse(folder / "out.xml").iter("testcase")
    return {case.attrib["name"]: "".join(part.text or "" for part in case) for case in cases}


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A run in this folder, without the plugins that happen to be installed."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "100"}
    return subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True, text=True)


def errors(outcome: str) -> list[str]:
    """The lines that pytest marks as the error."""
    return [line[1:].strip() for line in outcome.splitlines() if line.startswith("E ")]


@pytest.mark.parametrize(
    "name",
    [
        "test_passes",
        "test_of_the_function_comes_before_the_class",
        "test_of_the_call_comes_before_all",
        "test_the_fault_is_waived",
    ],
)
def test_it_passes(outcomes: dict[str, str], name: str) -> None:
    assert outcomes[name] == ""


def test_an_overflow_fails_with_the_first_fault(outcomes: dict[str, str]) -> None:
    lines = errors(outcomes["test_overflows"])
    assert lines[0] == "AssertionError: OVERFLOW in forward. fc leaves the FP16 range; FP32 is fine."
    text = "\n".join(lines)
    assert re.search(r"Born at +fc \(Linear\) +aten::\w+ +forward", text)
    assert "exactly 65,536 (FP16 ends at 65,504)" in text
    assert "error AMP101 forward overflow   fc" in text


def test_the_traceback_is_the_line_of_the_test_and_nothing_of_ours(outcomes: dict[str, str]) -> None:
    outcome = outcomes["test_overflows"]
    assert ">       amp_check(OVERFLOWS, X, mean)" in outcome
    assert re.findall(r"^(\S+\.py):\d+:", outcome, re.MULTILINE) == ["test_model.py"]


@pytest.mark.parametrize("name", ["test_breaks_a_limit", "test_of_the_class", "test_limit_of_the_module"])
def test_a_limit_fails_where_it_is_not_kept(outcomes: dict[str, str], name: str) -> None:
    first = errors(outcomes[name])[0]
    assert re.fullmatch(r"AssertionError: fc: 2\.0 bits of headroom, where limits.*asks for 2: .*", first), (
        first
    )


def test_a_limit_that_nothing_was_held_against_does_not_pass(outcomes: dict[str, str]) -> None:
    expected = 'AssertionError: limits."g*".headroom_bits names nothing that was measured'
    assert errors(outcomes["test_limit_that_names_nothing"])[0] == expected


def test_the_gates_own_words_count_too(outcomes: dict[str, str]) -> None:
    assert any("AMP901" in line for line in errors(outcomes["test_fails_on_a_code"]))


def test_what_measures_nothing_does_not_pass(outcomes: dict[str, str]) -> None:
    assert errors(outcomes["test_measures_nothing"])[0].startswith("AssertionError: NOT MEASURED.")


def test_a_misspelled_limit_is_named(outcomes: dict[str, str]) -> None:
    expected = "Failed: limits.headrom_bits: unknown key; did you mean 'headroom_bits'?"
    assert errors(outcomes["test_misspelled_limit"]) == [expected]


def test_a_model_that_fails_in_fp32_shows_the_projects_own_line(outcomes: dict[str, str]) -> None:
    lines = errors(outcomes["test_fails_in_fp32"])
    assert 'raise KeyError("labels")' in lines
    assert "the model raises in FP32 as well: KeyError: 'labels'" in lines


def test_a_marker_without_keywords_is_a_mistake(outcomes: dict[str, str]) -> None:
    assert "amp_limits takes keywords" in outcomes["test_marker_without_keywords"]


def test_the_marker_is_listed(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "-p", "ampdoctor.pytest_plugin", "--markers")
    assert "@pytest.mark.amp_limits(headroom_bits=" in done.stdout


def test_pytest_starts_without_torch(tmp_path: Path) -> None:
    test = "import sys\n\ndef test_no_torch():\n    assert 'torch' not in sys.modules\n"
    (tmp_path / "test_nothing.py").write_text(test)
    done = run_pytest(tmp_path, "-p", "ampdoctor.pytest_plugin")
    assert done.returncode == 0, done.stdout


def test_the_plugin_is_one_of_pytests_entry_points() -> None:
    found = {point.value for point in entry_points(group="pytest11") if point.name == "ampdoctor"}
    assert found == {"ampdoctor.pytest_plugin"}

"""Training scripts, of tests/cases and sample_scripts: each fault at its line, no alarm on correct ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from ampdoctor.diagnose.loop.rules import LOOP_RULES
from script_runner import lines, run, urgent

ROOT = Path(__file__).parent.parent
CASES = sorted(path.parent for path in (ROOT / "tests" / "cases").glob("*/train.py"))
SAMPLES = sorted((ROOT / "sample_scripts").glob("*.py"))
FAULTY = [case for case in CASES if case.name.startswith("train_")]
CORRECT = [case for case in CASES if case.name.startswith("ctrl_")]


@pytest.mark.parametrize("case", FAULTY, ids=lambda case: case.name)
def test_a_faulty_script_gets_a_finding_at_its_line(case: Path) -> None:
    report, _, _ = run(case / "train.py")
    hint = yaml.safe_load((case / "expected.yaml").read_text())["line_hint"].splitlines()[0]
    assert any(hint in line for line in lines(report)), lines(report)
    assert report.findings[0].severity != "info"


@pytest.mark.parametrize("case", CORRECT, ids=lambda case: case.name)
def test_a_correct_script_is_left_in_peace(case: Path) -> None:
    report, ended, _ = run(case / "train.py")
    assert (urgent(report), ended.status) == ([], 0)
    assert report.examined
    assert {e.report.verdict for e in report.examined} == {"clean"}


def promised(script: Path) -> set[str]:
    return set(re.findall(r"AMP\d{3}", script.read_text().splitlines()[0]))


def of_ranks(script: Path) -> bool:
    """The script is for torchrun; tests/test_run_ranks.py runs it."""
    return "torchrun" in script.read_text().splitlines()[0]


@pytest.mark.parametrize(
    "script", [s for s in SAMPLES if promised(s) and not of_ranks(s)], ids=lambda path: path.stem
)
def test_a_sample_script_shows_the_rule_it_names_and_no_other(script: Path) -> None:
    report, _, _ = run(script)
    assert {f.code for f in report.findings} - {"AMP420"} == promised(script) - {"AMP420"}
    assert promised(script) <= {f.code for f in report.findings}


def test_a_healthy_sample_script_has_no_finding() -> None:
    report, _, _ = run(ROOT / "sample_scripts" / "healthy.py")
    assert report.findings == ()
    assert report.sound


def test_every_rule_of_the_loop_has_a_sample_script() -> None:
    assert set().union(*map(promised, SAMPLES)) == {rule.code for rule in LOOP_RULES}

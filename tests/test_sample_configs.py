"""Each sample config shows the rule that its first line names, and every rule has one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ampdoctor.diagnose.rules import RULES
from case_runner import codes, scanned_sample, warnings_of

SAMPLES = Path(__file__).parent.parent / "sample_configs"
CONFIGS = sorted(SAMPLES.glob("*.yaml"))

WITHOUT_SAMPLE = {
    "AMP901": "every scan on a CPU that imitates CUDA has it",
    "AMP904": "a model that computes something else while it is watched would have to be contrived",
}


def promised(config: Path) -> set[str]:
    """The rule codes in the first line of a sample config."""
    return set(re.findall(r"AMP\d{3}", config.read_text().splitlines()[0]))


SICK = [config for config in CONFIGS if promised(config)]
HEALTHY = [config for config in CONFIGS if not promised(config)]
KNOWN = {rule.code for rule in RULES}


@pytest.mark.parametrize("config", [c for c in SICK if promised(c) <= KNOWN], ids=lambda path: path.stem)
def test_a_sick_sample_shows_the_rule_it_names(config: Path) -> None:
    _, report = scanned_sample(config)
    assert promised(config) <= codes(report)


@pytest.mark.parametrize("config", HEALTHY, ids=lambda path: path.stem)
def test_a_healthy_sample_is_clean(config: Path) -> None:
    trace, report = scanned_sample(config)
    assert (report.verdict, warnings_of(report)) == ("clean", [])
    assert trace.environment.batches == 2


def test_every_rule_has_a_sample() -> None:
    shown = set().union(*(promised(config) for config in SICK))
    assert KNOWN - shown == set(WITHOUT_SAMPLE) & KNOWN


def test_there_is_a_healthy_sample() -> None:
    assert {"healthy", "healthy_bf16"} <= {config.stem for config in HEALTHY}

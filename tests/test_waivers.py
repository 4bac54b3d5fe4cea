"""Waivers: what they accept, when they stop, and that an idle one is told."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from ampdoctor.cli import clock
from ampdoctor.cli.main import run
from ampdoctor.diagnose.engine import diagnose
from ampdoctor.diagnose.gate_result import Accepted, WaiverState
from ampdoctor.diagnose.policy import Policy
from ampdoctor.diagnose.report import Report
from ampdoctor.diagnose.waivers import Waiver
from ampdoctor.facts.trace import Trace
from ampdoctor.render import FORMATS, Options
from ampdoctor.store.traces import write_trace
from trace_builder import birth, candidate, parameter, record, reference, trace


def thin() -> Trace:
    """Less than 1 bit of headroom in decoder.3 and in head, and no fault."""
    sites = (
        record("decoder.3", "aten::mm", 0, 40_000.0),
        record("head", "aten::mm", 1, 50_000.0),
    )
    return trace(passes=(reference(sites=sites), candidate(sites=sites)))


def report(today: str, *waivers: Waiver) -> Report:
    return diagnose(thin(), Policy(waivers=waivers, today=today, select=("AMP1",)))


def summary(found: Report) -> list[tuple[str, str, Accepted | None]]:
    return [(f.module, f.severity, f.accepted) for f in found.findings]


DECODER = Waiver("AMP103", "decoder.*", "bounded by tanh", "2027-01-31")


def test_a_waived_finding_weighs_nothing_and_says_why() -> None:
    accepted = Accepted("waiver", "warning", "bounded by tanh", "2027-01-31")
    found = report("2027-01-31", DECODER)  # its last day
    assert summary(found) == [("head", "warning", None), ("decoder.3", "info", accepted)]
    assert found.waivers == (WaiverState("AMP103", "decoder.*", "bounded by tanh", "2027-01-31", "used", 1),)


def test_after_its_last_day_the_finding_counts_again_and_says_so() -> None:
    found = report("2027-02-01", DECODER)
    decoder = next(f for f in found.findings if f.module == "decoder.3")
    assert (decoder.severity, decoder.accepted) == ("warning", None)
    assert decoder.message.endswith(" Its waiver expired on 2027-01-31.")
    assert [w.state for w in found.waivers] == ["expired"]


def test_without_a_day_no_waiver_expires() -> None:
    assert [w.state for w in report("", DECODER).waivers] == ["used"]


def test_a_waiver_without_a_date_holds_for_ever() -> None:
    assert [w.state for w in report("9999-12-31", Waiver("AMP103", "*", "known")).waivers] == ["used"]


@pytest.mark.parametrize(
    ("waiver", "modules"),
    [
        (Waiver("AMP1", "*", "all"), ["decoder.3", "head"]),
        (Waiver("AMP103", "decoder.?", "one"), ["decoder.3"]),
        (Waiver("AMP101", "*", "another rule"), []),
        (Waiver("AMP103", "decoder", "no glob"), []),
    ],
    ids=["beginning of codes", "glob", "another rule", "a module's parent"],
)
def test_code_and_glob_decide_what_it_covers(waiver: Waiver, modules: list[str]) -> None:
    found = report("2026-01-01", waiver)
    assert [f.module for f in found.findings if f.accepted] == modules
    assert [w.state for w in found.waivers] == ["used" if modules else "unused"]


def test_the_first_waiver_that_still_holds_is_the_reason() -> None:
    over = Waiver("AMP103", "decoder.*", "old", "2025-01-01")
    found = report("2026-01-01", over, DECODER, Waiver("AMP103", "*", "later"))
    reasons = {f.module: f.accepted.reason for f in found.findings if f.accepted}
    assert reasons == {"decoder.3": "bounded by tanh", "head": "later"}
    assert "expired" not in " ".join(f.message for f in found.findings)


def text_of(found: Report) -> str:
    return " ".join(FORMATS["text"](found, Options()).split())


def test_the_terminal_report_shows_what_is_waived_and_by_whom() -> None:
    text = text_of(report("2026-01-01", DECODER))
    assert "waived AMP103 decoder.3: The largest value is 40,000" in text
    assert "Accepted until 2027-01-31: bounded by tanh" in text
    assert "Waivers" not in text


def test_the_terminal_report_names_idle_and_expired_waivers() -> None:
    text = text_of(report("2027-06-01", DECODER, Waiver("AMP101", "gone.*", "removed")))
    expired = "AMP103 decoder.* expired on 2027-01-31 (bounded by tanh): what it covered counts again"
    assert f"Waivers {expired} AMP101 gone.* matches nothing (removed): take it out" in text


def test_the_json_report_has_both() -> None:
    document: dict[str, Any] = json.loads(FORMATS["json"](report("2026-01-01", DECODER), Options()))
    (state,) = document["waivers"]
    assert state["state"] == "used"
    accepted = [f["accepted"] for f in document["findings"]]
    assert accepted == [
        None,
        {"by": "waiver", "severity": "warning", "reason": "bounded by tanh", "expires": "2027-01-31"},
    ]


# ---------------------------------------------------------------- commands


@pytest.mark.parametrize(("day", "state"), [("2027-01-31", "used"), ("2027-02-01", "expired")])
def test_a_command_reads_waivers_from_the_config_and_the_day_from_the_clock(
    day: str,
    state: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("ampdoctor.cli.report.today", lambda: day)
    sick = candidate(loss=math.nan, parameters=(parameter("w", nan=100, absmax=None),))
    write_trace(trace(births=(birth(),), passes=(reference(), sick)), tmp_path / "trace.json")
    waiver = '{code: AMP101, module: "blocks.*", reason: known, expires: 2027-01-31}'
    (tmp_path / "scan.yaml").write_text(
        f"model: {{target: m.py:m}}\ndata: {{target: m.py:d}}\nrules: {{waivers: [{waiver}]}}\n"
    )
    arguments = ["report", str(tmp_path / "trace.json"), "--config", str(tmp_path / "scan.yaml")]
    assert run([*arguments, "--format", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["waivers"]
    assert found["state"] == state


def test_the_day_has_the_form_that_waivers_have() -> None:
    assert len(clock.today()) == len("2027-01-31")
    assert clock.today()[4] == clock.today()[7] == "-"

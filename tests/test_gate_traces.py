"""`ampdoctor gate` on saved traces, and its command line."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from ampdoctor.render import GATE as FORMATS
from ampdoctor.store.traces import write_trace
from gate_runs import gate
from trace_builder import birth, candidate, environment, parameter, record, reference, trace

# ---------------------------------------------------------------- saved traces


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Traces of an overflow, of a clean run, and of nothing, in the current folder."""
    monkeypatch.chdir(tmp_path)
    sick = candidate(loss=math.nan, parameters=(parameter("w", nan=100, absmax=None),))
    thin = candidate(sites=(record("fc", "aten::mm", 0, 65504 / 2),))
    runs = {
        "sick": trace(births=(birth(),), passes=(reference(), sick)),
        "clean": trace(passes=(reference(), thin), environment=environment(title="clean.yaml")),
        "empty": trace(passes=()),
    }
    for name, run_ in runs.items():
        write_trace(run_, tmp_path / f"{name}.json")
    (tmp_path / "rules.yaml").write_text(
        "model: {target: m.py:m}\ndata: {target: m.py:d}\nlimits: {headroom_bits: 2}\n"
    )
    return tmp_path


def test_a_saved_trace_is_judged_without_running_anything(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = (
        "import sys; from ampdoctor.cli.main import run; status = run(sys.argv[1:]); "
        "assert 'torch' not in sys.modules, 'torch came along'; sys.exit(status)"
    )
    arguments = [sys.executable, "-c", command, "gate", "--trace", "clean.json"]
    done = subprocess.run(arguments, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    _, last = gate(capsys, "--trace", "clean.json", "--trace", "sick.json", code=1)
    assert last == (
        "gate failed: sick.json: AMP101 forward overflow, blocks.1.ff.wo (model.py:33): 1.1 % past 65,504"
    )


def test_a_saved_trace_takes_its_limits_from_a_config(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, last = gate(capsys, "rules.yaml", "--trace", "clean.json", code=1)
    assert last.endswith("AMP103 less headroom than the limit, fc (model.py:33): 1.0 bits short")
    options = ("--set", "limits.headroom_bits=1")
    gate(capsys, "rules.yaml", "--trace", "clean.json", *options, code=0)


def test_a_trace_of_nothing_is_never_green(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, last = gate(capsys, "--trace", "empty.json", code=3)
    assert " NOT MEASURED  No op that makes floating-point numbers ran.\n" in out
    assert last == "gate not measured: empty.json: No op that makes floating-point numbers ran."


def test_a_baseline_is_not_written_for_what_was_not_measured(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gate(capsys, "--trace", "empty.json", "--update-baseline", code=3)
    assert not (saved / "ampdoctor-baseline.json").exists()


def test_a_trace_without_a_config_is_known_by_its_title(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gate(capsys, "--trace", "sick.json", "--trace", "clean.json", "--update-baseline", code=0)
    written = json.loads((saved / "ampdoctor-baseline.json").read_text())
    assert list(written["configs"]) == ["clean.yaml", "t5.yaml"]
    gate(capsys, "--trace", "sick.json", code=0)


# ---------------------------------------------------------------- the command line


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "nothing to judge: name a config, a trace, or a model and its data"),
        (["a.yaml", "--model", "a.py:b"], "--model goes with no config and no trace"),
        (["a.yaml", "b.yaml", "--trace", "x"], "--trace goes with one config, for its limits, or with none"),
        (["--trace", "sick.json", "--set", "seed=1"], "--set changes a config, and there is none"),
        (["--trace", "sick.json", "--baseline", "no.json"], "there is no baseline no.json"),
        (
            ["--trace", "sick.json", "--baseline", "rules.yaml"],
            "the baseline rules.yaml is not a baseline: it holds no readable JSON "
            "(expected value at line 1 column 1)",
        ),
        (["--trace", "sick.json", "--format", "xml"], "--format xml: no such format"),
        (["a/x.yaml", "b/x.yaml", "-o", "{config}.txt"], "--output {config}.txt: {config} would be x twice"),
    ],
    ids=["nothing", "--model", "two configs", "--set alone", "no baseline", "no JSON", "format", "doubles"],
)
def test_a_wrong_command_line_says_why(
    saved: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    out, last = gate(capsys, *arguments, code=2)
    assert (out, last) == ("", f"error: {reason}")


def test_a_damaged_baseline_of_a_config_stops_only_that_config(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (saved / "ampdoctor-baseline.json").write_text("{")
    _, last = gate(capsys, "--trace", "clean.json", code=2)
    assert last.startswith("error: clean.json: the baseline ampdoctor-baseline.json is ")
    assert (saved / "ampdoctor-baseline.json").read_text() == "{"
    gate(capsys, "--trace", "clean.json", "--update-baseline", code=2)
    assert (saved / "ampdoctor-baseline.json").read_text() == "{"


def test_a_file_per_config(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces = ("--trace", "clean.json", "--trace", "sick.json")
    gate(capsys, *traces, "-o", "html={config}.html", "-o", "json={config}-gate.json", code=1)
    assert "OVERFLOW" in (saved / "sick.html").read_text()
    (report,) = json.loads((saved / "clean-gate.json").read_text())["reports"]
    assert report["gate"]["status"] == "passed"


def test_a_format_that_holds_one_report_needs_a_file_per_config(
    saved: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(FORMATS, "html")
    traces = ("--trace", "clean.json", "--trace", "sick.json")
    _, last = gate(capsys, *traces, "--format", "html", code=2)
    assert last == "error: html holds one report, and here are 2"
    gate(capsys, "--trace", "clean.json", "--format", "html", code=0)
    gate(capsys, *traces, "-o", "html={config}.html", code=1)


def test_several_documents_at_once(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces = ("--trace", "clean.json", "--trace", "sick.json")
    out, _ = gate(capsys, *traces, "--format", "github", "-o", "sarif=a.sarif", "-o", "markdown=a.md", code=1)
    assert "::error file=model.py,line=33" in out
    assert len(json.loads((saved / "a.sarif").read_text())["runs"]) >= 1
    assert "forward-overflow" in (saved / "a.md").read_text()


def test_the_config_of_the_folder_is_taken(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (saved / "ampdoctor.yaml").write_text("model: {target: m.py:m}\ndata: {target: m.py:d}\n")
    _, last = gate(capsys, code=2)
    assert last == f"error: ampdoctor.yaml: model.target: there is no file m.py in {saved}"

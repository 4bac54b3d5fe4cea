"""What the command line adds to the formats: the repository's root, GitHub's summary, packages that lack."""

from __future__ import annotations

import importlib.util
import io
import json
import sys
from pathlib import Path

import pytest

from ampdoctor.cli.main import run
from ampdoctor.cli.output import print_document
from ampdoctor.cli.repository import path_from_here, repository_root
from ampdoctor.render import FORMATS, MANY
from ampdoctor.store.traces import write_trace
from trace_builder import birth, candidate, reference, source, trace


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository in whose folder sub, the current one, lies the trace of an overflow in src/model.py."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "sub").mkdir()
    fault = birth(source=source(file=str(tmp_path / "src" / "model.py")))
    write_trace(trace(births=(fault,), passes=(reference(), candidate())), tmp_path / "sub" / "trace.json")
    monkeypatch.chdir(tmp_path / "sub")
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    return tmp_path


def test_the_root_is_the_nearest_folder_with_git(project: Path) -> None:
    assert repository_root(project / "sub") == project
    (project / "sub" / ".git").write_text("gitdir: elsewhere")  # as in a worktree
    assert repository_root(project / "sub") == project / "sub"


def test_without_a_repository_it_is_the_folder_itself(tmp_path: Path) -> None:
    assert repository_root(tmp_path) == tmp_path


def test_a_config_is_named_from_the_current_folder(project: Path) -> None:
    assert path_from_here(project / "sub" / "a" / "b.yaml") == str(Path("a", "b.yaml"))
    assert path_from_here(project / "b.yaml") == str(project / "b.yaml")
    assert path_from_here(None) == ""


def test_annotations_name_files_from_the_root(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "trace.json", "--format", "github"]) == 0
    assert "::error file=src/model.py,line=33," in capsys.readouterr().out


def test_sarif_names_files_from_the_root(project: Path) -> None:
    assert run(["report", "trace.json", "-o", "sarif=a.sarif"]) == 0
    (log,) = json.loads(Path("a.sarif").read_text())["runs"]
    location = log["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert location == {"uri": "src/model.py", "uriBaseId": "%SRCROOT%"}


def test_on_github_the_summary_grows(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = project / "summary.md"
    summary.write_text("From another step.\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    assert run(["report", "trace.json", "--format", "github"]) == 0
    assert run(["report", "trace.json", "--format", "markdown", "-o", "report.md"]) == 0
    assert summary.read_text() == "From another step.\n" + Path("report.md").read_text()
    assert "src/model.py:33" in summary.read_text()


def test_a_summary_that_cannot_be_written_is_named(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(project / "no" / "summary.md"))
    assert run(["report", "trace.json", "--format", "github"]) == 2
    assert capsys.readouterr().err == (
        "error: cannot write to $GITHUB_STEP_SUMMARY: No such file or directory\n"
    )


@pytest.mark.parametrize("arguments", [["--format", "junit"], ["-o", "junit=a.xml"]])
def test_a_package_that_lacks_is_named_before_the_work(
    project: Path,
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "ampdoctor.cli.output.find_spec", lambda name: None if name == "junitparser" else found(name)
    )
    assert run(["scan", "nowhere.yaml", *arguments]) == 2
    assert capsys.readouterr().err == (
        'hint: pip install "ampdoctor[junit]" brings it\n'
        "error: the format junit needs the package junitparser\n"
    )


def test_what_stdout_cannot_encode_is_spelled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    print_document("a · ö\n")
    assert raw.getvalue() == rb"a \xb7 \xf6" + b"\n"


def test_formats_that_hold_several_reports_hold_one() -> None:
    assert set(MANY) <= set(FORMATS)

"""``--format`` and ``--output``: which documents a command writes, and where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ampdoctor.cli.main import run
from ampdoctor.cli.sinks import Sink, sinks_of
from ampdoctor.errors import ConfigError
from ampdoctor.store.traces import write_trace
from trace_builder import candidate, record, reference, trace


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trace in a file of the current folder."""
    monkeypatch.chdir(tmp_path)
    sites = (record("head", "aten::mm", 0),)
    write_trace(trace(passes=(reference(sites=sites), candidate(sites=sites))), tmp_path / "trace.json")
    return tmp_path


def test_without_output_the_document_is_on_stdout() -> None:
    assert sinks_of("json", None) == (Sink("json", None),)


def test_a_bare_file_takes_the_place_of_stdout(saved: Path) -> None:
    assert sinks_of("json", ["a.json"]) == (Sink("json", Path("a.json")),)


def test_a_file_with_a_format_comes_on_top_of_stdout(saved: Path) -> None:
    expected = (Sink("text", None), Sink("json", Path("a.json")))
    assert sinks_of("text", ["json=a.json"]) == expected


def test_a_bare_file_and_files_with_formats_go_together(saved: Path) -> None:
    expected = (Sink("json", Path("b.txt")), Sink("text", Path("a.txt")))
    assert sinks_of("json", ["b.txt", "text=a.txt"]) == expected


def test_a_path_with_an_equals_sign_in_a_folder_is_a_path(saved: Path) -> None:
    assert sinks_of("text", ["./json=a"]) == (Sink("text", Path("json=a")),)


@pytest.mark.parametrize(
    ("outputs", "reason"),
    [
        (["xml=a.xml"], "--output xml=a.xml: there is no format xml"),
        (["json=no/a.json"], "--output no/a.json: there is no directory {cwd}/no"),
        (["text=a", "json=a"], "--output a: this file is named twice"),
    ],
    ids=["unknown format", "missing folder", "twice the same file"],
)
def test_what_cannot_be_written_is_refused(saved: Path, outputs: list[str], reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        sinks_of("text", outputs)
    assert refused.value.message == reason.format(cwd=saved)


def test_one_report_in_two_formats_at_once(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "trace.json", "--output", "json=report.json"]) == 0
    assert " CLEAN. " in capsys.readouterr().out
    assert json.loads((saved / "report.json").read_text())["verdict"] == "clean"

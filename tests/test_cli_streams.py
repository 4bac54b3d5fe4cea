"""Full streams, names that no file can have, a folder that is gone: one line, the documented exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ampdoctor.cli.main import run

MODEL = """
import torch
def build_model(): return torch.nn.Linear(2, 2)
def build_batch(): return torch.ones(1, 2)
"""
CONFIG = """
model: {target: "m.py:build_model"}
data: {target: "m.py:build_batch"}
loss: none
precision: {device: cpu}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text(MODEL)
    (tmp_path / "c.yaml").write_text(CONFIG)
    return tmp_path


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    program = command.replace("ampdoctor", f"{sys.executable} -m ampdoctor", 1)
    return subprocess.run(["sh", "-c", program], cwd=folder, check=False, capture_output=True, text=True)


@pytest.mark.parametrize("command", ["--help", "--version", "explain AMP101", "report --help"])
def test_a_full_stdout_is_said_in_one_line(command: str, tmp_path: Path) -> None:
    ended = shell(f"ampdoctor {command} > /dev/full", tmp_path)
    assert (ended.returncode, ended.stderr) == (
        2,
        "error: cannot write to stdout: No space left on device\n",
    )


@pytest.mark.parametrize(("command", "code"), [("scan none.yaml", 2), ("explain AMP101", 0)])
def test_a_full_stderr_leaves_the_exit_code_as_it_is(command: str, code: int, tmp_path: Path) -> None:
    assert shell(f"ampdoctor {command} 2> /dev/full", tmp_path).returncode == code


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    piped = shell("ampdoctor --help | head -c 1", tmp_path)
    assert (len(piped.stdout), piped.stderr) == (1, "")


def test_ctrl_c_while_it_starts_is_one_line(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupts())\n"
        "from ampdoctor.__main__ import main\n"
        "main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "", "interrupted: nothing was measured\n")


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    ended = shell("cd gone && rmdir ../gone && ampdoctor scan ../c.yaml", tmp_path)
    assert ended.returncode == 2
    assert ended.stderr.endswith("error: the folder this was started in no longer exists\n")


@pytest.mark.parametrize("name", ["a" * 256, "a" * 4096])
@pytest.mark.parametrize("option", ["--output", "--save"])
def test_a_name_that_no_file_can_have_is_refused_before_the_scan(
    option: str, name: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "m.py").write_text("raise SystemError('loaded')")
    assert run(["scan", "c.yaml", option, name]) == 2
    assert "no file can have this name" in capsys.readouterr().err.splitlines()[-1]


def test_the_longest_name_is_written(project: Path) -> None:
    assert run(["scan", "c.yaml", "--quiet", "--output", "a" * 255]) == 0
    assert (project / ("a" * 255)).read_text()


def test_what_a_terminal_would_act_on_is_written_out(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two problems, each with an escape sequence and a line end of its own in the key."""
    keys = '"\\e[2J\\nerror: fine": 1\n"\\e[31m": 2\n'
    (project / "bad.yaml").write_text(CONFIG + keys)
    assert run(["scan", "bad.yaml"]) == 2
    said = capsys.readouterr().err
    assert "\x1b" not in said
    assert [line for line in said.splitlines() if line.startswith("error:")] == [
        "error: bad.yaml has 2 problems"
    ]


def test_init_leaves_the_old_config_where_the_disk_is_full(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    assert (
        run(["init", "--model", "m.py:build_model", "--data", "m.py:build_batch", "--force", "-o", "c.yaml"])
        == 2
    )
    assert (project / "c.yaml").read_text() == CONFIG

"""A training script where a config belongs: the command that scans a model in it, read from its text."""

from __future__ import annotations

from pathlib import Path

import pytest

from ampdoctor.cli.main import run
from ampdoctor.config.script_names import not_a_config

TRAIN = """
import torch
from torch import nn

class Base(nn.Module):
    pass

class Block(Base):
    def __init__(self, d): ...

class Net(Base):
    def __init__(self, d=8):
        self.block = Block(d)

class FocalLoss(nn.Module): ...
class Config: ...

criterion = nn.MSELoss()

def get_loader(batch_size=4): ...
def make_optimizer(model): ...
def train_model(model): ...

if __name__ == "__main__":
    for x in get_loader():
        pass
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_hint_lists_what_could_be_the_three_and_gives_the_command(here: Path) -> None:
    Path("train.py").write_text(TRAIN)
    error = not_a_config(Path("train.py"))
    assert error.message == "train.py is a Python script, not a config"
    assert error.hint.splitlines() == [
        "in train.py could be the model: Block(d), Base, Net; data: get_loader; "
        "loss: FocalLoss, criterion; optimizer: make_optimizer(model)",
        "train.py also defines Config, train_model(model)",
        "a model in it is scanned with "
        "`--model train.py:Net --data train.py:get_loader --loss train.py:criterion`",
    ]


def test_what_is_missing_is_named(here: Path) -> None:
    Path("train.py").write_text("def helper(a, *, b): ...\n")
    assert not_a_config(Path("train.py")).hint.splitlines() == [
        "train.py defines helper(a, b)",
        "a model in it is scanned with `--model train.py:build_model --data train.py:build_batch "
        "--loss cross_entropy`, with build_model() and build_batch() written",
    ]


@pytest.mark.parametrize("body", ["for x in y: ...\n", "def main(): ...\nmain()\n", "loss.backward()\n"])
def test_a_script_that_trains_when_imported_is_for_run(here: Path, body: str) -> None:
    Path("train.py").write_text(body)
    assert "a script for `run`" in not_a_config(Path("train.py")).hint


def test_a_script_that_is_not_there_or_does_not_parse_says_so(here: Path) -> None:
    Path("train.py").write_text("x = 1\ndef f(:\n")
    assert str(not_a_config(Path("trian.py"))) == "there is no file trian.py\nDid you mean train.py?"
    assert not_a_config(Path("train.py")).message.endswith("and does not parse, line 2")


def test_the_command_says_both_ways_and_runs_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text("import sys\n" + TRAIN + "\nsys.exit(7)\n")
    assert run(["scan", "train.py"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("hint: a training script is examined with `ampdoctor run train.py")
    assert lines[-2].startswith("hint: a model in it is scanned with `--model train.py:Net")
    assert lines[-1] == "error: train.py is a Python script, not a config"


def test_no_way_to_run_a_script_is_told_where_there_is_none(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["scan", "train.py"]) == 2
    assert capsys.readouterr().err == "error: there is no file train.py\n"

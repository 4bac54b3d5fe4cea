"""``ampdoctor scaler``: its documents, its exit codes, and one clear reason for what it cannot do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ampdoctor.cli.main import run

MODEL = """\
import torch

print("the model prints on import")


def build_model():
    model = torch.nn.Linear(1, 1)
    torch.nn.init.ones_(model.weight)
    return model


def build_batch():
    return torch.ones(1, 1)


def build_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.0)


def compute_loss(model, batch):
    return (model(batch).float() * 1024).sum()


def interrupt(model, batch):
    raise KeyboardInterrupt
"""
CONFIG = """\
model: {target: model.py:build_model}
data: {target: model.py:build_batch}
loss: {target: model.py:compute_loss}
precision: {device: cpu}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model whose loss scale may be 2^5 at most, which is the current one."""
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "bare.yaml").write_text(CONFIG)
    (tmp_path / "train.yaml").write_text(CONFIG + "optimizer: {target: model.py:build_optimizer}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fails(capsys: pytest.CaptureFixture[str], arguments: list[str], code: int) -> list[str]:
    """The lines on stderr of a command that writes no document."""
    assert run(["scaler", *arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    return err.splitlines()


def test_it_prints_the_report_and_keeps_the_users_prints_off_stdout(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["scaler", "train.yaml", "--steps", "14"]) == 0
    out, err = capsys.readouterr()
    assert "SETTLES at 32. 11 of 14 steps are skipped on the way down from 65,536." in out
    assert "the model prints on import" not in out
    assert "the model prints on import" in err


def test_json_in_a_file(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train.yaml", "--steps", "3", "--init-scale", "2^6", "--format", "json", "-o", "scale.json"]
    assert run(["scaler", *arguments, "--policy", "keras,static:16", "--policy", "torch"]) == 0
    assert capsys.readouterr().out == ""
    document = json.loads((project / "scale.json").read_text())
    assert [s["scale"] for s in document["steps"]] == [64.0, 32.0, 32.0]
    assert document["settings"]["growth_interval"] == 2000
    assert [p["policy"] for p in document["policies"]] == ["keras", "static:16", "torch"]


def test_a_growth_interval_is_the_runs_and_every_policys(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train.yaml", "--steps", "4", "--init-scale", "16", "--growth-interval", "1"]
    assert run(["scaler", *arguments, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [s["scale"] for s in document["steps"]] == [16.0, 32.0, 64.0, 32.0]
    assert {p["growth_interval"] for p in document["policies"]} == {1}


def test_without_an_optimizer_it_says_what_to_write(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hint, reason = fails(capsys, ["bare.yaml"], 2)
    assert reason == "error: optimizer: is missing, and `ampdoctor scaler` takes real training steps"
    assert "optimizer: {target: torch.optim:AdamW, kwargs: {lr: 1e-3}}" in hint


def test_the_optimizer_may_come_from_the_command_line(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["scaler", "bare.yaml", "--steps", "1", "--set", "optimizer.target=torch.optim:AdamW"]) == 0
    assert "1 step of AdamW on a working copy" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--policy", "pytorch"], "error: --policy pytorch: no such policy"),
        (["--policy", "static:fast"], "error: --policy static:fast: 'fast' is no loss scale"),
        (["--policy", "static:0"], "error: --policy static:0: '0' is no loss scale"),
        (["--init-scale", "0"], "error: --init-scale 0: a loss scale is a number above 0, 1024 or 2^10"),
        (["--init-scale", "inf"], "error: --init-scale inf: a loss scale is a number above 0, 1024 or 2^10"),
        (["--init-scale", "big"], "error: --init-scale big: a loss scale is a number above 0, 1024 or 2^10"),
        (["--format", "xml"], "error: --format xml: no such format"),
        (["--set", "loss=none"], "error: loss: none leaves nothing to train with"),
    ],
)
def test_a_wrong_option_is_one_line(
    project: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    assert fails(capsys, ["train.yaml", *arguments], 2)[-1] == reason


def test_a_near_miss_of_a_policy_is_suggested(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hint, _ = fails(capsys, ["train.yaml", "--policy", "deepsped"], 2)
    assert hint.startswith("hint: did you mean deepspeed?")


def test_half_weights_are_a_diagnosis_and_no_crash(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scaler", "train.yaml", "--set", "precision.mode=half"]) == 0
    out = capsys.readouterr().out
    assert "REFUSED. torch's GradScaler does not take these gradients" in out
    assert "error AMP302 half parameters with GradScaler" in out


def test_an_interruption_gives_what_there_is(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scaler", "train.yaml", "--set", "loss.target=model.py:interrupt"]) == 3
    out, err = capsys.readouterr()
    assert "NOT MEASURED. The run ended before its first step did." in out
    assert "Interrupted after 0 steps of 200." in out
    assert err.splitlines()[-1] == "interrupted: the report covers the steps taken until then"

"""A run that breaks at step 300 and is killed; another process finds where, and what cures it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ampdoctor
from ampdoctor.cli.main import run as command
from ampdoctor.live.trigger import Trigger, Turn
from flight_scripts import write


@pytest.fixture(scope="module")
def flown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the script, and the ``flight`` of its run, which was killed at step 302."""
    folder = write(tmp_path_factory.mktemp("flown"))
    words = [sys.executable, "-m", "ampdoctor", "run", "--record", "flight", "train.py"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == -9
    assert done.stderr.strip() == f"step 300 is recorded: ampdoctor replay {folder}/flight/step-00000300"
    return folder


def answer(flown: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, *words: str) -> tuple[int, Any, str]:
    monkeypatch.chdir(flown)
    status = command([*words, "-q", "--format", "json"])
    out, err = capsys.readouterr()
    return status, json.loads(out), err


BUNDLE = ("flight/step-00000300", "--model", "net.py:build_model")


def test_the_fault_is_located_in_another_process(
    flown: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, report, err = answer(flown, monkeypatch, capsys, "replay", *BUNDLE)
    assert status == 0
    assert report["verdict"] == "forward-overflow"
    fault = report["first_fault"]
    assert (fault["op"], fault["source"]["text"]) == (
        "aten::pow",
        "h = h.square() - h.square().detach() + h  # inf - inf",
    )
    assert err.splitlines() == ["recorded: train.py, step 300: its loss is nan"]
    assert not (flown / "flight" / "step-00000301").exists()  # one of the row of bad steps


def test_it_says_where_the_fault_does_not_show(
    flown: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # CUDA's autocast runs pow in FP32, a CPU's own does not
    _, report, err = answer(flown, monkeypatch, capsys, "replay", *BUNDLE, "--set", "precision.emulate=cuda")
    assert report["verdict"] == "clean"
    assert err.splitlines()[1] == "differs: recorded on a CPU as it is, run on one that imitates CUDA"
    assert err.splitlines()[2].startswith("not reproduced: the recorded loss is nan, here it is 1.")


def test_other_versions_and_lines_are_named(
    flown: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bundle = tmp_path / "step"
    bundle.mkdir()
    for file in (flown / BUNDLE[0]).iterdir():
        (bundle / file.name).write_bytes(file.read_bytes())
    facts = bundle / "bundle.json"
    text = facts.read_text().replace('"torch_version":"', '"torch_version":"0.', 1)
    text = text.replace('"text":"loss = F.cross_entropy(net(x), y)"', '"text":"loss = old(net(x), y)"')
    facts.write_text(text)
    _, _, err = answer(flown, monkeypatch, capsys, "replay", str(bundle), *BUNDLE[1:])
    assert "differs: torch 0." in err
    assert err.splitlines()[2].endswith("train.py has other lines than it had")


def test_prescribe_cures_it(
    flown: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, found, _ = answer(flown, monkeypatch, capsys, "prescribe", *BUNDLE, "--save", "plan.yaml")
    assert found["treatments"][0]["kind"] == "fp32"
    _, report, _ = answer(flown, monkeypatch, capsys, "replay", *BUNDLE, "--plan", "plan.yaml")
    assert report["verdict"] == "clean"


def test_gate_and_histogram_take_it_like_a_config(
    flown: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, gate, _ = answer(flown, monkeypatch, capsys, "gate", *BUNDLE)
    assert (status, gate["status"]) == (1, "failed")
    words = ("grad-histogram", *BUNDLE, "--set", "precision.emulate=cuda")
    status, gradients, _ = answer(flown, monkeypatch, capsys, *words)
    assert status == 0 and gradients["schema"] == "ampdoctor.gradients/1"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("replay", "nothing"), "error: there is no bundle nothing"),
        (("replay", "train.py"), "error: train.py is a file, and a bundle is a folder"),
        (("replay", "flight"), "error: flight is not a bundle: it has no bundle.json; the newest of those"),
        (
            ("replay", BUNDLE[0]),
            "error: flight/step-00000300: the model in it is a net.Net, which the bundle",
        ),
        (("scan", BUNDLE[0], "--data", "x.py:y"), "error: --data and a bundle do not go together"),
        (("scan", BUNDLE[0], "--after-steps", "2"), "error: --after-steps is of a config: a bundle holds"),
        (("replay", BUNDLE[0], "--model", "net.py:Nat"), "error: model.target: net.py has no 'Nat'"),
    ],
)
def test_what_is_wrong_is_one_line_and_status_2(
    flown: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(flown)
    assert command([*words, "-q"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1].startswith(said)
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "wrong",
    [
        {"skips": 0},
        {"skips": 1.5},
        {"most_bytes": -1},
        {"most_bytes": "x"},
        {"loss_factor": float("nan")},
        {"loss_factor": "x"},
    ],
)
def test_a_recorder_refuses_limits_that_are_none(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=next(iter(wrong))):
        ampdoctor.FlightRecorder(nn.Linear(2, 2), directory=tmp_path, **wrong)


def test_a_file_is_no_place_for_bundles(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ampdoctor.AmpDoctorError, match="is a file"):
        ampdoctor.FlightRecorder(nn.Linear(2, 2), directory=tmp_path / "file")


def test_a_recorder_that_fails_does_not_end_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(trigger: Trigger, turn: Turn) -> None:
        raise RuntimeError("no luck")

    monkeypatch.setattr(Trigger, "why", broken)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ampdoctor.FlightRecorder(model, directory=tmp_path):
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    assert [r.message for r in caplog.records] == ["step 0 was not looked at: RuntimeError: no luck"]

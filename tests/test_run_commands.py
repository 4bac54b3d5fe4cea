"""``--script`` in a config's place: the same verdict, sites and figures, for every command that takes one."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ampdoctor.cli.main import run as command

MODEL = """
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, gain):
        super().__init__()
        self.up, self.down, self.gain = nn.Linear(6, 12), nn.Linear(12, 3), gain

    def forward(self, x):
        return self.down(self.up(x * self.gain).square())


def build_model(gain=1.0):
    torch.manual_seed(0)
    return Block(gain)


def build_batch():
    torch.manual_seed(1)
    return torch.randn(5, 6), torch.tensor([0, 1, 2, 0, 1])


def compute_loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def build_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)
"""
TRAIN = """
import argparse
from parts import *

parser = argparse.ArgumentParser()
parser.add_argument("--gain", type=float, default=1.0)
net, (x, y) = build_model(parser.parse_args().gain), build_batch()
opt = build_optimizer(net)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step in range(3):
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = compute_loss(net, (x, y))
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    print("step", step)
"""
CONFIG = """
version: 1
model: {{target: parts.py:build_model, kwargs: {{gain: {gain}}}}}
data: {{target: parts.py:build_batch}}
loss: {{target: parts.py:compute_loss}}
optimizer: {{target: parts.py:build_optimizer}}
precision: {{loss_scale: {{dynamic: 1024}}, device: cpu}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "parts.py").write_text(MODEL)
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "parts", raising=False)  # another test's
    return tmp_path


def document(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> Any:
    code = command(list(words))
    out, err = capsys.readouterr()
    assert code == status, err
    return json.loads(out)


@pytest.mark.parametrize("gain", [1.0, 3000.0])
def test_the_scan_of_a_script_is_that_of_the_same_models_config(
    gain: float, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "ampdoctor.yaml").write_text(CONFIG.format(gain=gain))
    own = document(capsys, "scan", "--format", "json")
    ours = document(capsys, "scan", "--format", "json", "--script", "train.py", "--", "--gain", str(gain))
    assert own["verdict"] == ("clean" if gain == 1.0 else "forward-overflow")
    for key in ("verdict", "losses", "layers", "parameters", "loss_scale"):
        assert ours[key] == own[key], key
    for key in ("module", "op", "source", "value"):
        assert (ours["first_fault"] or {}).get(key) == (own["first_fault"] or {}).get(key)


def test_a_step_is_chosen_by_its_number(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = document(capsys, "scan", "--format", "json", "--script", "train.py")
    third = document(capsys, "scan", "--format", "json", "--script", "train.py", "--step", "2")
    assert third["losses"][0]["reference"] < first["losses"][0]["reference"]
    assert command(["scan", "--script", "train.py", "--step", "3"]) == 2
    assert "train.py ended after 3 steps, before step 3" in capsys.readouterr().err


def test_a_step_with_several_backwards_asks_for_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "two.py").write_text(
        "from parts import *\nnet, batch = build_model(), build_batch()\nopt = build_optimizer(net)\n"
        "compute_loss(net, batch).backward()\n(2 * compute_loss(net, batch)).backward()\nopt.step()\n"
    )
    assert command(["scan", "--script", "two.py"]) == 2
    assert "step 0 has 2 backwards, in lines 4, 5" in capsys.readouterr().err
    words = ("scan", "--format", "json", "--script", "two.py", "--backward")
    once, twice = document(capsys, *words, "4"), document(capsys, *words, "5")
    assert twice["losses"][0]["reference"] == 2 * once["losses"][0]["reference"]


def test_what_the_script_does_can_be_changed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("scan", "--format", "json", "--script", "train.py", "--set", "precision.dtype=bfloat16")
    assert document(capsys, *words)["environment"]["dtype"] == "bfloat16"
    assert command(["scan", "--script", "train.py", "--set", "precision.dtipe=bfloat16"]) == 2
    assert "precision.dtipe" in capsys.readouterr().err


def test_the_scaler_trains_on_from_the_scripts_step(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("scaler", "--steps", "3", "--init-scale", "1024", "--format", "json", "--quiet")
    (folder / "ampdoctor.yaml").write_text(CONFIG.format(gain=1.0))
    own, ours = document(capsys, *words), document(capsys, *words, "--script", "train.py")
    losses = [[step["loss"] for step in report["steps"]] for report in (own, ours)]
    assert losses[0] == losses[1]


def test_gradients_and_a_prescription_of_a_script(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = command(["grad-histogram", "--script", "train.py", "--quiet", "--", "--gain", "2"])
    out = capsys.readouterr().out
    assert shown == 0
    assert "--script train.py --sweep -- --gain 2" in " ".join(out.split())
    cure = document(capsys, "prescribe", "--script", "train.py", "--format", "json", "--", "--gain", "3000")
    assert cure["treatments"]


INSIDE = """
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.float16):
            return self.down(self.up(x * self.gain).square())
"""


@pytest.mark.parametrize("where", ["around the model", "in the model", "both"])
def test_a_script_in_float16_is_tried_in_bfloat16(
    where: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At a gain of 3,000 squares leave FP16's range and not BF16's, wherever the script opens autocast."""
    if where != "around the model":
        plain = MODEL[MODEL.index("    def forward") : MODEL.index("def build_model")]
        (folder / "parts.py").write_text(MODEL.replace(plain, INSIDE[1:] + "\n"))
    if where == "in the model":
        around = "    with torch.autocast('cpu', dtype=torch.float16):\n        loss"
        (folder / "train.py").write_text(TRAIN.replace('"', "'").replace(around, "    loss"))
    words = ("--script", "train.py", "--format", "json")
    cure = document(capsys, "prescribe", *words, "--", "--gain", "3000")
    assert "bf16" in [treatment["kind"] for treatment in cure["treatments"]]
    words = (*words, "--set", "precision.dtype=bfloat16")
    assert document(capsys, "scan", *words, "--", "--gain", "3000")["verdict"] == "clean"


def test_a_gate_fails_on_a_script(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["gate", "--script", "train.py", "-q"]) == 0
    assert command(["gate", "--script", "train.py", "-q", "--", "--gain", "3000"]) == 1
    assert "AMP101" in capsys.readouterr().err
    (folder / "train.py").write_text(TRAIN.replace("    scaler.step(opt)", "    opt.step()"))
    assert command(["gate", "--script", "train.py", "-q", "--steps", "2"]) == 1
    assert "AMP404" in capsys.readouterr().err
    (folder / "train.py").write_text("raise ValueError('no data')")
    assert command(["gate", "--script", "train.py", "-q"]) == 3
    assert "ValueError: no data" in capsys.readouterr().err


def test_script_and_config_do_not_go_together(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["scan", "a.yaml"], ["gate", "a.yaml"], ["scaler", "a.yaml"], ["prescribe", "a.yaml"]):
        assert command([*words, "--script", "train.py"]) == 2
        assert "--script" in capsys.readouterr().err
    assert command(["scan", "--step", "3"]) == 2
    assert "--script train.py --step 3" in capsys.readouterr().err
    assert command(["scan", "--script", "nowhere.py"]) == 2
    assert "there is no script nowhere.py" in capsys.readouterr().err


@pytest.fixture
def package(folder: Path) -> Iterator[Path]:
    """The same as a module of a package, which imports relatively."""
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").touch()
    (folder / "parts.py").rename(folder / "package" / "parts.py")
    (folder / "package" / "train.py").write_text(TRAIN.replace("from parts", "from .parts"))
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "package"]:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["scan", "gate", "scaler", "prescribe", "grad-histogram"])
def test_a_module_in_a_scripts_place(name: str, package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = ["--steps", "2"] if name == "scaler" else []
    assert command([name, "-m", "package.train", "--quiet", *steps, "--", "--gain", "2"]) == 0
    assert "package.train" in capsys.readouterr().out
    assert command([name, "-m", "package.train", "--script", "package/train.py"]) == 2
    assert "--script and -m do not go together" in capsys.readouterr().err


def test_what_follows_a_module_is_the_modules(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (package / "package" / "told.py").write_text("import sys\nprint(sys.argv[1:])")
    assert command(["run", "-m", "package.told", "--steps", "5", "-m", "other"]) == 0
    assert capsys.readouterr().out == "['--steps', '5', '-m', 'other']\n"
    assert command(["run", "-m"]) == 2
    assert capsys.readouterr().err.endswith("error: -m names no module\n")


@pytest.mark.parametrize(
    ("words", "right"),
    [
        (["train.py", "--steps", "5"], "ampdoctor run --steps 5 train.py"),
        (["train.py", "--gain", "2", "--until-nan"], "ampdoctor run --until-nan train.py"),
        (["train.py", "--save=x.json"], "ampdoctor run --save=x.json train.py"),
    ],
)
def test_options_behind_the_scripts_name_are_the_scripts_and_it_is_said_where_they_belong(
    words: list[str], right: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["run", *words]) == 2
    assert capsys.readouterr().err.endswith(f"options of run stand before its name: {right}\n")
    assert command(["run", "train.py", "--nonsense"]) == 2
    assert "options of run" not in capsys.readouterr().err

"""``ampdoctor run``: a script behaves as under python, and its step becomes what a config would name."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from ampdoctor.cli.main import TAKE_SCRIPTS
from ampdoctor.cli.main import run as command
from ampdoctor.schemas.run import run_schema
from case_runner import scan
from script_runner import run, urgent

MODEL = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
x, y = torch.randn(5, 6), torch.tensor([0, 1, 2, 0, 1])
"""
LOOP = """
for _ in range(3):
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(net(x), y)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
"""


def written(folder: Path, text: str, name: str = "train.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_the_scan_of_a_script_and_that_of_its_model_agree(tmp_path: Path) -> None:
    report, _, _ = run(written(tmp_path, MODEL + LOOP))
    (examined,) = report.examined
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))
    batch = (torch.randn(5, 6), torch.tensor([0, 1, 2, 0, 1]))
    _, own = scan(net, batch, lambda m, b: functional.cross_entropy(m(b[0]), b[1]), loss_scale=1024.0)
    ours = examined.report
    assert ours.losses == own.losses
    assert ours.layers == own.layers
    assert ours.parameters == own.parameters
    assert ours.loss_scale.ceiling == own.loss_scale.ceiling


def test_each_backward_of_a_step_is_a_workload_and_roots_have_the_scripts_names(tmp_path: Path) -> None:
    body = (
        MODEL
        + """
critic = nn.Linear(3, 1)
opt_c = torch.optim.SGD(critic.parameters(), lr=0.1)
for _ in range(2):
    fake = net(x)
    opt_c.zero_grad()
    critic(fake.detach()).mean().backward()
    opt_c.step()
    opt.zero_grad()
    (-critic(fake).mean()).backward()
    opt.step()
"""
    )
    report, _, _ = run(written(tmp_path, body))
    assert [e.step for e in report.examined] == [0, 0]
    names = {row.module for row in report.examined[1].report.layers}
    assert {"net.0", "critic"} <= names


def test_a_fault_outside_modules_is_at_the_scripts_line(tmp_path: Path) -> None:
    body = (
        MODEL
        + """
for _ in range(3):
    opt.zero_grad()
    out = net(x)
    loss = (out - out).sqrt().sum()
    loss.backward()
    opt.step()
"""
    )
    report, _, _ = run(written(tmp_path, body), until_nan=True)
    (examined,) = report.examined
    assert (examined.why, examined.report.verdict) == ("not finite", "backward-undefined")
    fault = examined.report.first_fault
    assert fault is not None
    assert fault.source is not None
    assert fault.source.text == "loss = (out - out).sqrt().sum()"
    assert report.stopped == "step 0 is not finite"


def test_checkpointing_and_penalties_can_be_replayed(tmp_path: Path) -> None:
    body = (
        MODEL
        + """
from torch.utils.checkpoint import checkpoint
for _ in range(2):
    opt.zero_grad()
    data = x.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.float16):
        out = checkpoint(net, data, use_reentrant=False)
        loss = F.cross_entropy(out, y)
    (grad,) = torch.autograd.grad(loss, data, create_graph=True)
    (loss + 0.1 * grad.square().sum()).backward()
    opt.step()
"""
    )
    report, ended, _ = run(written(tmp_path, body))
    assert ended.said == ""
    assert [e.report.verdict for e in report.examined] == ["clean"], report.not_seen


COUNTER = """
class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(6), nn.Linear(6, 3)
        self.register_buffer("calls", torch.zeros(()))
    def forward(self, x):
        self.calls += 1
        return self.out(self.norm(x)) * self.calls
net = Counted()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for i in range(3):
    opt.zero_grad()
    loss = F.cross_entropy(net(x), y)
    print(loss.item())
    loss.backward()
    opt.step()
print(net.calls.item(), net.norm.num_batches_tracked.item(), net.norm.running_mean.sum().item())
"""


def test_a_step_is_run_again_from_the_buffers_it_began_with(tmp_path: Path) -> None:
    path = written(tmp_path, MODEL + COUNTER)
    plain = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True).stdout
    report, _, printed = run(path, step=1)
    assert printed == plain
    (examined,) = report.examined
    assert examined.report.losses[0].reference == float(printed.split()[1])


def test_training_goes_on_as_without_us(tmp_path: Path) -> None:
    path = written(tmp_path, MODEL + LOOP + "print([p.sum().item() for p in net.parameters()])\n")
    plain = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True).stdout
    assert run(path)[2] == plain


SCRIPTS = {
    "arguments": (
        "import argparse, sys\n"
        "p = argparse.ArgumentParser()\np.add_argument('--lr')\nprint(p.parse_args().lr, sys.argv[1:])\n",
        0,
    ),
    "exit": ("import sys\nsys.exit(7)\n", 7),
    "exit text": ("import sys\nsys.exit('bad data')\n", 1),
    "raise": ("def f():\n    raise ValueError('no')\n\nf()\n", 1),
    "main": ("if __name__ == '__main__':\n    print(__file__, __name__)\n", 0),
    "folder": ("import os, neighbour\nos.chdir('/')\nprint(neighbour.VALUE, os.getcwd())\n", 0),
    "syntax": ("def f(:\n", 1),
    "spawn": (
        "import multiprocessing as mp\n\ndef work(q):\n    q.put(__name__)\n\nif __name__ == '__main__':\n"
        "    c = mp.get_context('spawn')\n    q = c.Queue()\n    p = c.Process(target=work, args=(q,))\n"
        "    p.start()\n    print(q.get())\n    p.join()\n",
        0,
    ),
    "fork": (
        "import multiprocessing as mp, torch\n\ndef work(q):\n    q.put(torch.ones(2).sum().item())\n\n"
        "c = mp.get_context('fork')\nq = c.Queue()\np = c.Process(target=work, args=(q,))\np.start()\n"
        "print(q.get())\np.join()\n",
        0,
    ),
    "workers": (
        "import torch\n\nclass D(torch.utils.data.Dataset):\n    def __len__(self):\n        return 4\n"
        "    def __getitem__(self, i):\n        return torch.tensor(i)\n\nif __name__ == '__main__':\n"
        "    print([b.tolist() for b in torch.utils.data.DataLoader(D(), batch_size=2, num_workers=1)])\n",
        0,
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_behaves_as_under_python(name: str, tmp_path: Path) -> None:
    text, status = SCRIPTS[name]
    path = written(tmp_path, text)
    written(tmp_path, "VALUE = 3\n", "neighbour.py")
    arguments = ["--lr", "0.1"] if name == "arguments" else []
    plain = subprocess.run(
        [sys.executable, str(path), *arguments], capture_output=True, text=True, check=False
    )
    report, ended, printed = run(path, *arguments)
    if name != "workers":  # their output order is torch's own
        assert printed == plain.stdout
    assert (ended.status, plain.returncode) == (status, status)
    assert ended.said.split() == plain.stderr.split() or name in ("syntax", "raise")
    if name == "raise":
        assert ended.said.splitlines()[-1] == plain.stderr.splitlines()[-1]
        assert "ampdoctor" not in ended.said.replace(str(tmp_path), "")
    assert not report.sound


def test_the_command_writes_the_documents_and_leaves_stdout_to_the_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from jsonschema import Draft202012Validator

    path = written(tmp_path, MODEL + LOOP + "print('done')\n")
    outputs = [
        f"{name}={tmp_path / name}" for name in ("json", "markdown", "github", "sarif", "html", "junit")
    ]
    options = [word for output in outputs for word in ("-o", output)]
    save = tmp_path / "trace.json"
    assert command(["run", *options, "--save", str(save), str(path), "--steps", "its own"]) == 0
    out, err = capsys.readouterr()
    assert out == "done\n"
    assert "NOTHING WRONG" in err
    document: Any = json.loads((tmp_path / "json").read_text())
    assert list(Draft202012Validator(run_schema()).iter_errors(document)) == []
    assert document["steps"] == {"done": 3, "skipped": 0}
    assert [m["scale"] for m in document["timeline"]] == [1024.0] * 3
    assert command(["report", str(save)]) == 0


def test_a_module_is_run_with_m(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "package").mkdir()
    written(tmp_path / "package", "", "__init__.py")
    written(tmp_path / "package", "WIDTH = 6\n", "sizes.py")
    written(tmp_path / "package", "from .sizes import WIDTH\nassert WIDTH == 6\n" + MODEL + LOOP)
    monkeypatch.chdir(tmp_path)
    target = tmp_path / "r.json"
    assert command(["run", "-o", f"json={target}", "-m", "package.train"]) == 0
    assert json.loads(target.read_text())["steps"]["done"] == 3


def test_steps_and_ctrl_c_give_the_report_so_far(tmp_path: Path) -> None:
    report, ended, _ = run(written(tmp_path, MODEL + LOOP), steps=2)
    assert (report.done, report.stopped, ended.status) == (2, "--steps 2", 0)
    report, ended, _ = run(written(tmp_path, MODEL + LOOP + "raise KeyboardInterrupt\n"))
    assert (report.done, report.stopped, ended.status) == (3, "interrupted", 130)
    assert urgent(report) == []


def test_a_signal_gives_the_report_so_far(tmp_path: Path) -> None:
    script = written(tmp_path, MODEL + LOOP + 'print("ready", flush=True)\nimport time\ntime.sleep(100)\n')
    target = tmp_path / "r.json"
    running = subprocess.Popen(
        [sys.executable, "-m", "ampdoctor", "run", "-o", f"json={target}", str(script)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert running.stdout is not None
    assert running.stdout.readline() == "ready\n"
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert (running.returncode, "Traceback" in said) == (130, False), said
    document = json.loads(target.read_text())
    assert (document["stopped"], document["steps"]) == ("interrupted", {"done": 3, "skipped": 0})


def test_a_script_may_end_as_if_interrupted(tmp_path: Path) -> None:
    target = tmp_path / "r.json"
    script = written(tmp_path, MODEL + LOOP + "raise SystemExit(130)\n")
    assert command(["run", "-o", f"json={target}", str(script)]) == 130
    assert json.loads(target.read_text())["stopped"] == "the script ended with exit status 130"


def test_what_a_fused_optimizer_skips_is_read_once_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []
    original = torch.Tensor.__bool__

    def read(tensor: torch.Tensor) -> bool:
        reads.append(Path(sys._getframe(1).f_code.co_filename))
        return original(tensor)

    monkeypatch.setattr(torch.Tensor, "__bool__", read)
    text = (MODEL + LOOP).replace("lr=0.1", "lr=0.1, fused=True").replace("1024.0", "2.0**127")
    report, _, _ = run(written(tmp_path, text))
    assert (report.done, report.skipped) == (3, 3)
    assert [f.name for f in reads if f.name in ("optimizers.py", "scalers.py")] == ["optimizers.py"] * 3


MISTAKEN = (
    "train.py", "scan train.py", "scan train.py --lr 1", "gate train.py", "gate --trace train.py",
    "scaler train.py", "prescribe train.py", "grad-histogram train.py", "grad-histogram --trace train.py",
    "report train.py", "init train.py", "explain train.py", "schema train.py",
)  # fmt: skip


@pytest.mark.parametrize("line", MISTAKEN)
def test_a_script_in_the_place_of_something_else_is_told_what_to_do(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, MODEL)
    monkeypatch.chdir(tmp_path)
    assert command(line.split()) == 2
    said = capsys.readouterr().err
    name = line.split()[0]
    assert "`ampdoctor run train.py --its --own args`" in said
    assert (f"`ampdoctor {name} --script train.py -- --its" in said) == (name in TAKE_SCRIPTS)
    assert said.splitlines()[-1].startswith("error: ")


def test_a_config_in_a_scripts_place_is_told_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["run", "ampdoctor.yaml"]) == 2
    assert "ampdoctor scan ampdoctor.yaml" in capsys.readouterr().err


def test_an_optimizer_with_a_closure_is_examined_before_it_moves_anything(tmp_path: Path) -> None:
    body = (
        MODEL
        + """
def closure():
    opt.zero_grad()
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    print(loss.item())
    return loss
for _ in range(3):
    opt.step(closure)
"""
    )
    report, _, printed = run(written(tmp_path, body))
    losses = [float(word) for word in printed.split()]
    assert [m.loss for m in report.timeline] == losses
    assert report.done == 3
    (examined,) = report.examined
    assert examined.report.losses[0].reference == losses[0]


def test_a_script_that_is_not_there_is_one_clear_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["run", "nowhere.py"]) == 2
    assert "there is no script nowhere.py" in capsys.readouterr().err
    assert command(["run"]) == 2


def test_a_very_long_run_is_held_in_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ampdoctor.live import recorder

    monkeypatch.setattr(recorder, "_MOST_MOMENTS", 8)
    monkeypatch.setattr(recorder, "MOST_EVENTS", 40)
    model = MODEL.replace("1024.0", "2.0**26")
    report, _, _ = run(written(tmp_path, model + LOOP.replace("range(3)", "range(30)")))
    assert report.done == 30
    assert [m.step for m in report.timeline] == [0, 8, 16, 24, 29]
    assert "of the timeline all but one in 8 steps" in report.not_seen
    assert "events of the loop past the first 200,000" in report.not_seen
    monkeypatch.undo()
    whole, _, _ = run(written(tmp_path, model + LOOP.replace("range(3)", "range(30)")))
    assert report.skipped == whole.skipped == sum(m.skipped for m in whole.timeline) > 2


def test_an_option_that_is_not_there_is_no_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["run", "--quiet", "train.py"]) == 2
    said = capsys.readouterr().err
    assert said.endswith("error: there is no option --quiet\n")
    assert "behind its name" in said

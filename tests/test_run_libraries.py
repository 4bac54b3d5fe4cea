"""Training loops of libraries, run as they are: each gets its step examined and no finding."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from script_runner import run, urgent

DATA = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
data = torch.utils.data.DataLoader([(torch.randn(6), i % 3) for i in range(16)], batch_size=4)
"""
ACCELERATE = """
from accelerate import Accelerator
accelerator = Accelerator(mixed_precision="bf16", cpu=True)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
net, optimizer, data = accelerator.prepare(net, optimizer, data)
for x, y in data:
    optimizer.zero_grad()
    accelerator.backward(nn.functional.cross_entropy(net(x), y))
    accelerator.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
"""
LIGHTNING = """
import sys
import lightning
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net
    def training_step(self, batch, i):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)
lightning.Trainer(
    default_root_dir=sys.argv[1], max_steps=3, precision="bf16-mixed", accelerator="cpu", logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1.0,
).fit(Module(), data)
"""
TRANSFORMERS = """
import sys
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
sizes = dict(n_layer=1, n_embd=16, n_head=2, vocab_size=64, n_positions=8)
config = GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
texts = [{"input_ids": t, "labels": t} for t in torch.randint(0, 64, (16, 8))]
arguments = TrainingArguments(
    sys.argv[1], per_device_train_batch_size=4, max_steps=3, bf16=True, use_cpu=True, report_to=[],
    save_strategy="no", disable_tqdm=True,
)
Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=texts).train()
"""
LOOPS = {"accelerate": (ACCELERATE, 4), "lightning": (LIGHTNING, 3), "transformers": (TRANSFORMERS, 3)}


@pytest.mark.parametrize("library", LOOPS)
def test_the_loop_of_a_library_is_examined(library: str, tmp_path: Path) -> None:
    pytest.importorskip("accelerate" if library == "transformers" else library)
    if library != "lightning":
        from accelerate.state import AcceleratorState

        # It holds one precision for the whole process: that of the first test which used it.
        AcceleratorState._reset_state(reset_partial_state=True)
    text, steps = LOOPS[library]
    path = tmp_path / "train.py"
    path.write_text(DATA + text)
    report, ended, _ = run(path, str(tmp_path))
    assert (ended.status, ended.said) == (0, "")
    assert report.done == steps
    assert urgent(report) == []
    (examined,) = report.examined
    assert (examined.step, examined.report.verdict) == (0, "clean")
    assert examined.report.environment.dtype == "bfloat16"
    script, ours = report.timeline[0].loss, examined.report.losses[0].candidate
    assert script == pytest.approx(ours, rel=2**-8)  # BF16 rounds to 8 bits; its CPU kernels sum otherwise


DDP = """
import torch
from torch import nn
import torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0)
net = nn.parallel.DistributedDataParallel(nn.Linear(6, 3))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(2):
    opt.zero_grad()
    x = torch.randn(4, 6) if dist.get_rank() == 0 else torch.full((4, 6), float("nan"))
    net(x).square().mean().backward()
    opt.step()
dist.destroy_process_group()
"""


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def test_under_torchrun_the_rank_of_a_poisoned_sample_is_named(tmp_path: Path) -> None:
    path, target = tmp_path / "train.py", tmp_path / "report.json"
    path.write_text(DDP)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port",
        str(free_port()), "-m", "ampdoctor", "run", "-o", f"json={target}", str(path),
    ]  # fmt: skip
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    poisoned = json.loads((tmp_path / "report.rank1.json").read_text())
    assert poisoned["script"].endswith("train.py, rank 1")
    assert poisoned["examined"][0]["report"]["verdict"] == "bad-input"
    assert json.loads(target.read_text())["examined"][0]["report"]["verdict"] == "clean"


def test_of_two_processes_each_names_its_rank(tmp_path: Path) -> None:
    path, target = tmp_path / "train.py", tmp_path / "report.json"
    path.write_text(DDP)
    environment = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": "2",
    }
    command = [sys.executable, "-m", "ampdoctor", "run", "-o", f"json={target}", str(path)]
    processes = [
        subprocess.Popen(command, env={**environment, "RANK": rank}, stderr=subprocess.PIPE) for rank in "01"
    ]
    said = [process.communicate(timeout=120)[1].decode() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    first, second = (json.loads(f.read_text()) for f in (target, tmp_path / "report.rank1.json"))
    assert first["script"].endswith("train.py, rank 0")
    assert second["script"].endswith("train.py, rank 1")
    assert second["examined"][0]["report"]["verdict"] == "bad-input"
    assert first["examined"][0]["report"]["verdict"] == "clean"

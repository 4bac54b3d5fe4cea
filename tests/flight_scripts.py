"""A training script whose step 300 overflows in FP16, and models of several kinds that are recorded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ampdoctor

NET = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Linear(12, 3)

    def forward(self, x):
        h = self.up(x)
        h = h.square() - h.square().detach() + h  # inf - inf
        return self.down(self.norm(h))


def build_model():
    torch.manual_seed(0)
    return Net()
"""
TRAIN = """
import os, signal, sys
import torch
from torch.nn import functional as F
from net import build_model

net = build_model()
opt = torch.optim.AdamW(net.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
y = torch.tensor([0, 1, 2, 0, 1])
for step in range(1000):
    x = torch.randn(5, 6)
    if step == 300:
        x = x * 1000
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(net(x), y)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step == 302:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def write(folder: Path) -> Path:
    """The folder, with ``net.py`` and ``train.py`` in it."""
    (folder / "net.py").write_text(NET)
    (folder / "train.py").write_text(TRAIN)
    return folder


def record(
    folder: Path, parameters: list[Any], loss_of: Callable[[Tensor], Tensor], model: nn.Module, **options: Any
) -> Path:
    """The bundle of step 20, whose loss is finite: any loss above 0 counts as a spike."""
    optimizer = torch.optim.AdamW(parameters, lr=0.01)
    generator = torch.Generator().manual_seed(5)
    torch.manual_seed(6)
    with ampdoctor.FlightRecorder(model, optimizer, directory=folder, loss_factor=0.0, **options) as recorder:
        for _ in range(21):
            x = torch.randn(5, 6, generator=generator)
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = loss_of(x)
            loss.backward()
            optimizer.step()
    (bundle,) = recorder.bundles
    return bundle


class Tied(nn.Module):
    """A module of the user's: two names for one weight, and a buffer that no state dict has."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6)
        self.two.weight = self.one.weight
        self.register_buffer("shift", torch.full((6,), 0.25), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(F.relu(self.one(x))) + self.shift


def convolution() -> nn.Module:
    """Norm, dropout and a kernel, all torch's own."""
    layers = (
        nn.Conv1d(1, 4, 3),
        nn.BatchNorm1d(4),
        nn.GELU(),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.Linear(16, 3),
    )
    return nn.Sequential(*layers)


def attention() -> nn.Module:
    """A function among its attributes, and a class that torch.nn does not name."""
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 12, batch_first=True), 2)

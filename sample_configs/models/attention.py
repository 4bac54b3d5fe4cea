"""One attention layer over padded sequences. What the padded scores are filled with is an argument."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, LENGTH = 16, 6


class PaddedAttention(nn.Module):
    def __init__(self, fill: float) -> None:
        super().__init__()
        self.fill = fill
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, padded: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / math.sqrt(WIDTH)
        scores = scores.masked_fill(padded[:, None, :], self.fill)
        return self.out(scores.softmax(-1) @ v)


class Classifier(nn.Module):
    def __init__(self, fill: float) -> None:
        super().__init__()
        self.attention = PaddedAttention(fill)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor, padded: Tensor) -> Tensor:
        return self.head(self.attention(x, padded).mean(1))


def build_model(fill: float) -> nn.Module:
    return Classifier(fill)


def build_batch() -> dict[str, Tensor]:
    """Four sequences; the second ends in padding."""
    padded = torch.zeros(4, LENGTH, dtype=torch.bool)
    padded[1, 4:] = True
    return {"x": torch.randn(4, LENGTH, WIDTH), "padded": padded, "labels": torch.tensor([0, 1, 2, 0])}


def build_batch_with_an_empty_sequence() -> dict[str, Tensor]:
    """The same, and sequence 2 is nothing but padding: its softmax has no finite score to choose from."""
    batch = build_batch()
    batch["padded"][2] = True
    return batch


def compute_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch["x"], batch["padded"]).float(), batch["labels"])

"""A layer norm written by hand. Two ways to get its smallest numbers wrong in half precision."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH = 32


class HandNorm(nn.Module):
    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        variance = x.var(-1, keepdim=True, unbiased=False)  # autocast leaves var alone: FP16 in, FP16 out
        return centred / torch.sqrt(variance + self.eps)


class Net(nn.Module):
    def __init__(self, eps: float, gain: float) -> None:
        super().__init__()
        self.inner = nn.Linear(8, WIDTH, bias=False)
        self.norm = HandNorm(eps)
        self.head = nn.Linear(WIDTH, 3)
        with torch.no_grad():
            self.inner.weight *= gain

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.inner(x)))


def build_model(eps: float, gain: float = 1.0) -> nn.Module:
    return Net(eps, gain)


def build_batch() -> dict[str, Tensor]:
    return {"x": torch.randn(6, 8), "labels": torch.tensor([0, 1, 2, 0, 1, 2])}


def build_padded_batch() -> dict[str, Tensor]:
    """The last row is padding: zeros, whose variance is exactly 0, so that only eps stands in the root."""
    batch = build_batch()
    batch["x"][5] = 0.0
    return batch


def compute_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch["x"]).float(), batch["labels"])

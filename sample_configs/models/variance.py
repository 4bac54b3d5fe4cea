"""A variance computed as the mean of squares less the square of the mean: two large numbers, nearly equal."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH = 32


class Standardise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        variance = (x * x).mean(-1, keepdim=True) - mean * mean  # about 901 - 900, in steps of 0.5
        return (x - mean) / torch.sqrt(variance.clamp(min=0.1))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, WIDTH)
        self.standardise = Standardise()
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.standardise(self.inner(x)))


def build_model() -> nn.Module:
    model = Net()
    with torch.no_grad():
        model.inner.weight *= 2
        model.inner.bias += 30.0  # a mean far from zero
    return model


def build_batch() -> dict[str, Tensor]:
    return {"x": torch.randn(6, 8), "labels": torch.tensor([0, 1, 2, 0, 1, 2])}


def compute_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch["x"]).float(), batch["labels"])

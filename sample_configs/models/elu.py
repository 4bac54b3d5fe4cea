"""An activation that computes both branches of a ``where``. The branch nobody takes overflows."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class SmoothElu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x > 0, x + 1, torch.exp(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 16)
        self.activation = SmoothElu()
        self.head = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.activation(self.inner(x)))


def build_model() -> nn.Module:
    model = Net()
    with torch.no_grad():
        model.inner.bias[3] = 100.0  # exp(100) is inf in FP32 as well
    return model


def build_batch() -> dict[str, Tensor]:
    return {"x": torch.randn(5, 8), "y": torch.randn(5, 1)}


def compute_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.mse_loss(model(batch["x"]).float(), batch["y"])

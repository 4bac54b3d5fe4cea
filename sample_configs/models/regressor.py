"""A small regressor, fit for FP16. What makes it sick is its batch, its loss or its scale."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def build_model() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 32), nn.SiLU(), nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 4))


def build_batch() -> dict[str, Tensor]:
    return {"x": torch.randn(8, 12), "y": torch.randn(8, 4)}


def build_batch_with_nan() -> dict[str, Tensor]:
    """A cache file written by an earlier, broken FP16 run: sample 3 holds NaN."""
    batch = build_batch()
    batch["x"][3, 2:5] = float("nan")
    return batch


def compute_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.mse_loss(model(batch["x"]).float(), batch["y"])


def compute_loss_in_half(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """A loss left in half precision: backward begins with the scale itself, and 65,536 is already inf."""
    error = model(batch["x"]) - batch["y"].half()
    return (error * error).mean()


def compute_summed_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """A sum where a mean belongs: gradients too large by that count, and the scale on top."""
    return F.mse_loss(model(batch["x"]).float(), batch["y"], reduction="sum") * 32


def compute_tiny_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """A loss weighted by 1e-6: without a scale its gradients lie below 2^-25 and FP16 makes them zero."""
    return 1e-6 * compute_loss(model, batch)


def build_sgd(model: nn.Module, lr: float = 1e-4) -> torch.optim.Optimizer:
    """By default steps of about 1e-6, on weights of 0.1 that FP16 keeps 6e-5 apart."""
    return torch.optim.SGD(model.parameters(), lr=lr)


def build_adam(model: nn.Module) -> torch.optim.Optimizer:
    """Adam as it comes: its eps of 1e-8 is 0 in FP16, and so is the square of a small gradient."""
    return torch.optim.Adam(model.parameters(), lr=1e-3)

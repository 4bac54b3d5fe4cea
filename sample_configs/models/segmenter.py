"""A segmentation net that ends in a sigmoid and BCELoss, which CUDA's autocast refuses to run."""

import torch
from torch import Tensor, nn


class Segmenter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))

    def forward(self, image: Tensor) -> Tensor:
        return torch.sigmoid(self.body(image))


def build_model() -> nn.Module:
    return Segmenter()


def build_batch() -> dict[str, Tensor]:
    return {"image": torch.randn(2, 1, 8, 8), "mask": torch.randint(0, 2, (2, 1, 8, 8)).float()}


def compute_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return nn.BCELoss()(model(batch["image"]), batch["mask"])

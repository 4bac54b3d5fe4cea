"""What hooks and models change of a tensor in place."""

from __future__ import annotations

import torch
from torch import Tensor


def changed_in_place(tensor: Tensor) -> None:
    with torch.no_grad():
        tensor.add_(1.0)

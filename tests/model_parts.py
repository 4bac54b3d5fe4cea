"""What several tests of models are built of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

Loss = Callable[[nn.Module, Any], Tensor]


def mean_square(output: Tensor) -> Tensor:
    return output.float().square().mean()


@dataclass
class Packed:
    hidden: Tensor
    extra: list[Tensor]

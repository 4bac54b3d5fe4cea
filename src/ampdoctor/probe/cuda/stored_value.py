"""What an op keeps in half between its steps."""

from __future__ import annotations

import torch
from torch import Tensor


class Stored:
    """The low-precision memory of one op: called with a value, it gives what is read back."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.values: list[Tensor] = []
        """What was stored, in order, in the wide dtype."""

    def __call__(self, value: Tensor) -> Tensor:
        """The value rounded to the low dtype, back in its own for the step that follows."""
        low = torch.complex32 if value.is_complex() else self.dtype
        self.values.append(value.to(low).to(value.dtype))
        return self.values[-1]

    def number(self, value: float) -> float:
        """A number that the kernel keeps as ``scalar_t``."""
        return float(torch.tensor(value, dtype=self.dtype))

"""What is not finite in a tensor, for tensors of any kind that can hold such a thing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Exact:
    """Counts of a non-finite tensor that the running tally cannot give: those of its finite elements too."""

    nan: int
    inf: int
    absmax: float | None


def elements(tensor: Tensor) -> Tensor:
    """The tensor that holds the elements: of a sparse one, its values."""
    return tensor._values() if tensor.layout == torch.sparse_coo else tensor


def readable(tensor: Tensor) -> Tensor:
    """The same values in a dtype that every question can be asked of; 8-bit floats know few of them."""
    return tensor.float() if tensor.is_floating_point() and tensor.itemsize == 1 else tensor


def has_nonfinite(tensor: Tensor) -> bool:
    """NaN or an infinity is among the elements."""
    return tensor.numel() > 0 and not bool(torch.isfinite(readable(tensor)).all())


def exact_counts(tensor: Tensor) -> Exact:
    """What is NaN, infinite, and the largest of the rest."""
    if tensor.numel() == 0:
        return Exact(0, 0, None)
    tensor = readable(tensor)
    magnitudes = tensor[torch.isfinite(tensor)].abs()
    return Exact(
        int(torch.isnan(tensor).sum()),
        int(torch.isinf(tensor).sum()),
        float(magnitudes.max()) if magnitudes.numel() else None,
    )


def broadcasts(tensor: Tensor, out: Tensor) -> bool:
    """Its shape fits element by element to that of ``out``."""
    if tensor.dim() > out.dim():
        return False
    return all(a in (1, b) for a, b in zip(reversed(tensor.shape), reversed(out.shape), strict=False))

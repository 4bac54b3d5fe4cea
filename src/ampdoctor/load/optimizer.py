"""What a function that builds an optimizer must give."""

from __future__ import annotations

from typing import Any

import torch

from ampdoctor.errors import LoadError
from ampdoctor.load.describe import describe


def checked_optimizer(built: Any, where: str) -> torch.optim.Optimizer:
    """The same; LoadError where it is no optimizer. ``where`` names who built it."""
    if isinstance(built, torch.optim.Optimizer):
        return built
    hint = ""
    if isinstance(built, (tuple, list)) and any(isinstance(one, torch.optim.Optimizer) for one in built):
        hint = (
            "Return one: optimizers are stepped one at a time, each by a function of its own, such as "
            "lambda model: build_optimizers(model)[0]."
        )
    raise LoadError(f"{where} returned {describe(built)}, not a torch.optim.Optimizer", hint)

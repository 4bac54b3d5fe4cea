"""Compiled functions, made to run eagerly: ampdoctor watches single ops, and a compiled graph shows none."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch


def eagerly(step: Callable[[torch.nn.Module, Any], Any]) -> Callable[[torch.nn.Module, Any], Any]:
    """The same step with every ``@torch.compile`` function inside it run as plain Python."""

    def eager_step(model: torch.nn.Module, batch: Any) -> Any:
        # Without dynamo in the process nothing is compiled, and set_stance would import it (over a second).
        if "torch._dynamo" not in sys.modules:
            return step(model, batch)
        with torch.compiler.set_stance("force_eager"):
            return step(model, batch)

    return eager_step

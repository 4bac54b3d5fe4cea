"""A workload whose passes end with the loss."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from ampdoctor.load.workload import Workload


def forward_only(workload: Workload) -> Workload:
    """The same with a loss that asks for no gradient, so that no backward runs; the forward keeps its graph,
    since some models do otherwise without one."""

    def step(model: nn.Module, batch: Any) -> Any:
        result = workload.step(model, batch)
        return result.detach() if isinstance(result, Tensor) else result

    return replace(workload, step=step)

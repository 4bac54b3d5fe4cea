"""Ops run as a GPU computes them in half."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ampdoctor.probe.cuda.on_cpu import Emulated, run_like_cuda

aten = torch.ops.aten


HALF, BRAIN, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


LOW = (HALF, BRAIN)


def half(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=HALF)


def run(func: Any, *args: Any, **kwargs: Any) -> Emulated:
    return run_like_cuda(func, args, kwargs)


class LikeCuda(TorchDispatchMode):
    """Runs every op through run_like_cuda."""

    def __init__(self) -> None:
        super().__init__()
        self.how: dict[str, str] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = run_like_cuda(func, args, kwargs or {})
        self.how[func._schema.name] = result.how
        return result.outputs

"""An observer of the writes that make up an optimizer's step: which elements each of them changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ampdoctor.probe.passes.precision import Precision
from ampdoctor.probe.watch.location import Line, user_line
from ampdoctor.probe.watch.locator import Locator
from ampdoctor.probe.watch.observer import describe
from ampdoctor.probe.watch.op_arguments import AnyOp, written
from ampdoctor.probe.watch.unrecorded import Unrecorded

_SAME_FACTOR = 0.05
"""How far the changes may be from one factor times the weights, in the 2-norm: FP32 rounds a decay of 1e-5 by
6e-8 of the weight, 0.6 % of the decay."""


@dataclass
class Write:
    """One op that writes to a parameter."""

    op: str
    """``aten::mul_``"""
    line: Line | None
    changes: Tensor
    """Boolean, of the parameter's shape: the elements that it changes."""
    proportional: bool
    """It changes each element by the same factor, towards zero."""


class ParameterWrites(Unrecorded):
    """Runs the step; keeps what each op does to the parameters whose memory is given by name."""

    def __init__(self, locator: Locator, precision: Precision, parameters: Mapping[str, Tensor]) -> None:
        super().__init__(locator, precision)
        self.writes: dict[str, list[Write]] = {}
        self._names = {_memory(t): name for name, t in parameters.items() if t.numel()}

    def see(self, func: AnyOp, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the op returns."""
        targets = [(name, t) for t in written(func, args, kwargs) if (name := self._names.get(_memory(t)))]
        before = [t.clone() for _, t in targets]
        made = super().see(func, args, kwargs)
        for (name, after), old in zip(targets, before, strict=True):
            write = Write(describe(func).name, user_line(), after != old, _is_proportional(old, after))
            self.writes.setdefault(name, []).append(write)
        return made


def _memory(tensor: Tensor) -> tuple[int, int]:
    return (tensor.data_ptr() if tensor.layout == torch.strided else 0), tensor.numel()


def _is_proportional(before: Tensor, after: Tensor) -> bool:
    weights = before.double()
    change = after.double() - weights
    size, moved = torch.linalg.vector_norm(weights), torch.linalg.vector_norm(change)
    if not bool(moved > 0) or not bool(torch.isfinite(moved)):
        return False
    factor = (change * weights).sum() / size**2
    rest = torch.linalg.vector_norm(change - factor * weights)
    return bool(factor < 0) and bool(rest <= _SAME_FACTOR * moved)

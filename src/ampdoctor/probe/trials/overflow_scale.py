"""The loss scale at which a step would overflow: the largest gradient of a backward, and no more of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ampdoctor.facts.floats import FLOAT_FORMATS
from ampdoctor.probe.passes.precision import Precision
from ampdoctor.probe.watch.locator import Locator, Place
from ampdoctor.probe.watch.observer import Observer, Op, Unrounded, is_countable, results
from ampdoctor.probe.watch.op_arguments import AnyOp, flat
from ampdoctor.scales.powers_of_two import LOW_PRECISION, ceiling_of

HIGHEST = 127
"""Exponent of the highest loss scale there is: the scale is an FP32 number."""


@dataclass(frozen=True)
class StepCeiling:
    """What a backward at one loss scale says about others."""

    ceiling: int
    """Exponent of the largest power of two at which none of its finite tensors overflows."""
    broken: tuple[str, str, str] | None
    """Module, op and forward op of the first tensor that is not finite."""


class CeilingWatch(Observer):
    """Looks only at the range of each low-precision tensor that backward makes: half the work of counting."""

    def __init__(self, locator: Locator, precision: Precision) -> None:
        super().__init__(locator, precision)
        self._largest: list[Tensor] = []
        self._made: list[tuple[str, Place, str]] = []
        """(dtype, place, op) of each."""

    def run(self, func: AnyOp, op: Op, place: Place, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the op returns. A forward run again in backward knows nothing of the loss scale."""
        outputs, unrounded = self.call(func, args, kwargs)
        if op.makes_values and place.phase == "backward" and not place.recomputed:
            for tensor in flat(results(func, args, kwargs, outputs)):
                if is_countable(tensor) and tensor.numel() and _name(tensor) in LOW_PRECISION:
                    self._note(tensor, unrounded, place, op)
        return outputs

    def _note(self, tensor: Tensor, unrounded: Unrounded, place: Place, op: Op) -> None:
        low, high = torch.aminmax(unrounded.get(id(tensor), tensor).detach())
        self._largest.append(torch.maximum(-low, high).float())
        self._made.append((_name(tensor), place, op.name))

    def read(self, scale: float) -> StepCeiling:
        """The threshold, read back from the device now. ``scale``: the loss scale of this backward."""
        ceiling, broken = HIGHEST, None
        largest = torch.stack(self._largest).tolist() if self._largest else []
        for absmax, (dtype, place, op) in zip(largest, self._made, strict=True):
            fmt = FLOAT_FORMATS[dtype]
            if math.isnan(absmax) or absmax >= fmt.overflow_at:
                broken = broken or (place.module, op, place.forward_op)
            elif absmax > 0 and scale > 0:
                ceiling = min(ceiling, ceiling_of(absmax / scale, fmt))
        return StepCeiling(ceiling, broken)


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")

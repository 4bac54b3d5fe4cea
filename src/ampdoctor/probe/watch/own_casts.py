"""Observers of an optimizer's own casts to 16 bits: as they are written, and widened."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator

from ampdoctor.probe.passes.precision import Precision
from ampdoctor.probe.watch.location import Line, user_line
from ampdoctor.probe.watch.locator import Locator
from ampdoctor.probe.watch.op_arguments import AnyOp, flat
from ampdoctor.probe.watch.unrecorded import Unrecorded

_SHORT = (torch.float16, torch.bfloat16)
_CASTS = ("aten::_to_copy", "aten::copy_", "aten::_foreach_copy_")
"""A conversion, and writes into memory of another dtype."""


class OwnCasts(Unrecorded):
    """Runs steps as written; remembers the cast from a wider dtype that loses most values to zero or inf."""

    def __init__(self, locator: Locator, precision: Precision) -> None:
        super().__init__(locator, precision)
        self.line: Line | None = None
        """Of that cast."""
        self.dtype: torch.dtype | None = None
        """What it casts to; None where no cast loses anything."""
        self.lost = 0
        """Elements that it loses."""
        self.casts = False
        """Something wider is cast to 16 bits."""

    def see(self, func: AnyOp, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the op returns."""
        made = super().see(func, args, kwargs)
        for wide, short in _pairs(func, args, made):
            if short.dtype in _SHORT and wide.dtype.itemsize > 2 and wide.is_floating_point():
                self.casts = True
                gone = ((wide != 0) & (short == 0)) | (torch.isfinite(wide) & ~torch.isfinite(short))
                lost = int(gone.sum())
                if lost > self.lost:
                    self.lost, self.dtype, self.line = lost, short.dtype, user_line(in_backward=False)
        return made


def _pairs(func: AnyOp, args: tuple[Any, ...], made: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """(what a cast is given, what it makes of it), where the op is one."""
    if isinstance(func, HigherOrderOperator) or func._schema.name not in _CASTS:
        return
    name = func._schema.name
    given, result = (args[0], made) if name == _CASTS[0] else (args[1], args[0])
    for wide, short in zip(flat([given]), flat([result]), strict=False):
        if isinstance(wide, Tensor) and isinstance(short, Tensor) and short.is_floating_point():
            yield wide, short


class CastsWidened(Unrecorded):
    """Runs the step with every tensor that it makes in 16 bits made in FP32."""

    narrow: tuple[torch.dtype, ...] = _SHORT
    wide = torch.float32

    def see(self, func: AnyOp, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the op returns."""
        if kwargs.get("dtype") in self.narrow:
            kwargs = {**kwargs, "dtype": self.wide}
        return super().see(func, args, kwargs)


class AllFloat64(CastsWidened):
    """Runs the step with every floating tensor that it makes in FP32 or less made in float64."""

    narrow = (*_SHORT, torch.float32)
    wide = torch.float64

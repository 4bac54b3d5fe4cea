"""Observers of an optimizer's own casts to 16 bits: as they are written, and widened."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ampdoctor.probe.watch.location import Line, user_line
from ampdoctor.probe.watch.op_arguments import AnyOp
from ampdoctor.probe.watch.unrecorded import Unrecorded

_SHORT = (torch.float16, torch.bfloat16)


class OwnCasts(Unrecorded):
    """Runs the step as written; remembers the cast from a wider dtype that rounds most values to zero."""

    line: Line | None = None
    """Of that cast."""
    dtype: torch.dtype | None = None
    """What it casts to; None where no cast rounds anything to zero."""
    flushed = 0
    """Elements that it rounds to zero."""

    def see(self, func: AnyOp, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the op returns."""
        made = super().see(func, args, kwargs)
        if (
            kwargs.get("dtype") in _SHORT
            and args
            and isinstance(args[0], Tensor)
            and args[0].dtype.itemsize > 2
        ):
            flushed = int(((args[0] != 0) & (made == 0)).sum())
            if flushed > self.flushed:
                self.flushed, self.dtype, self.line = flushed, made.dtype, user_line(in_backward=False)
        return made


class CastsWidened(Unrecorded):
    """Runs the step with every tensor that it makes in 16 bits made in FP32."""

    def see(self, func: AnyOp, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the op returns."""
        if kwargs.get("dtype") in _SHORT:
            kwargs = {**kwargs, "dtype": torch.float32}
        return super().see(func, args, kwargs)

"""Lines of the user's code that a candidate runs otherwise: with another number, or in FP32."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from ampdoctor.probe.plan import LineChange
from ampdoctor.probe.watch.location import user_line

_LOW = (torch.float16, torch.bfloat16)


@contextmanager
def lines_changed(changes: Sequence[LineChange], device: torch.device) -> Iterator[None]:
    """While open, the torch functions that these lines call are called as the changes say."""
    if not changes:
        yield
        return
    with _Changed(changes, device):
        yield


class _Changed(TorchFunctionMode):
    def __init__(self, changes: Sequence[LineChange], device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._changes: dict[tuple[str, int], list[LineChange]] = {}
        for change in changes:
            self._changes.setdefault((change.file, change.line), []).append(change)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        line = user_line()
        for change in self._changes.get((line[0].co_filename, line[1]), ()) if line else ():
            if change.constant is not None:
                args, kwargs = _with_constant(func, change, args, kwargs)
            else:
                args, kwargs = tree_map(_widen, (args, kwargs))
                with torch.autocast(self._device.type, enabled=False):
                    return func(*args, **kwargs)
        return func(*args, **kwargs)


def _with_constant(func: Any, change: LineChange, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments with the number put in the constant's place, where it is a default as well."""

    def other(value: Any) -> Any:
        same = isinstance(value, float | int) and not isinstance(value, bool) and value == change.constant
        return change.becomes if same else value

    found = {name: other(p.default) for name, p in _parameters(func).items() if name not in kwargs}
    defaults = {name: value for name, value in list(found.items())[len(args) :] if value == change.becomes}
    args, kwargs = tree_map(other, (tuple(args), kwargs))
    return args, {**kwargs, **defaults}


def _parameters(func: Any) -> dict[str, inspect.Parameter]:
    """The parameters of a function written in Python; {} for one of torch's core, which hides them."""
    return dict(inspect.signature(func).parameters) if inspect.isfunction(func) else {}


def _widen(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in _LOW else value

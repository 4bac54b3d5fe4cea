"""Modules whose inputs, weights, outputs and gradients are rounded to a format each, in an FP32 pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ampdoctor.facts.floats import FLOAT32, FLOAT_FORMATS, FloatFormat
from ampdoctor.probe.plan import ModuleFormats

Round = Callable[[Tensor], Tensor]


class _Tapped(torch.autograd.Function):
    """A tensor as one function makes it; its gradient as another does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: Round, gradient: Round) -> Tensor:
        ctx.gradient = gradient
        y = forward(x)
        return x.clone() if y is x else y  # a view of x could not be written to by an in-place module

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.gradient(gradient), None, None


def scaling_of(absmax: float, fmt: FloatFormat) -> int:
    """The exponent of the power of two that a tensor is multiplied with before it is rounded to ``fmt``.

    An 8-bit format has one per tensor, the largest at which nothing overflows; the others have none: 0.
    """
    if fmt.bits > 8 or not 0.0 < absmax < math.inf:
        return 0
    k = math.frexp(fmt.max)[1] - math.frexp(absmax)[1]
    return k if math.ldexp(absmax, k) <= fmt.max else k - 1


def rounded(x: Tensor, name: str) -> Tensor:
    """The tensor's values in the format of this name, in its own dtype; an FP8 tensor by its own scale.

    A tensor with an infinity or a NaN comes back as it is.
    """
    fmt = FLOAT_FORMATS[name]
    if fmt.mantissa_bits >= FLOAT32.mantissa_bits or not x.numel():
        return x
    low: torch.dtype = getattr(torch, name)
    if fmt.bits > 8:
        return x.to(low).to(x.dtype)
    absmax = float(x.abs().max())
    if not math.isfinite(absmax):
        return x
    k = scaling_of(absmax, fmt)
    # In two halves: 2^k alone may lie outside FP32, where x is near an end of it.
    first, second = k // 2, k - k // 2
    scaled = (x * math.ldexp(1.0, first) * math.ldexp(1.0, second)).to(low).to(x.dtype)
    return scaled * math.ldexp(1.0, -first) * math.ldexp(1.0, -second)


def finest_modules(model: nn.Module) -> dict[str, nn.Module]:
    """{path: module} of those without modules inside them."""
    return {path: m for path, m in model.named_modules() if next(m.children(), None) is None}


def matches(pattern: str, path: str) -> bool:
    """Whether the module lies at the pattern, or inside one that does; ``*`` stands within one name."""
    names, wanted = path.split("."), pattern.split(".")
    return pattern == "" or (
        len(wanted) <= len(names) and all(fnmatchcase(n, w) for n, w in zip(names, wanted, strict=False))
    )


def formats_by_module(model: nn.Module, chosen: Sequence[ModuleFormats]) -> dict[str, ModuleFormats]:
    """{path of a finest module: its formats}; of several patterns the longest counts."""
    longest = sorted(chosen, key=lambda item: item.path.count(".") if item.path else -1, reverse=True)
    found = {p: next((f for f in longest if matches(f.path, p)), None) for p in finest_modules(model)}
    return {path: item for path, item in found.items() if item is not None}


@contextmanager
def tapped(model: nn.Module, taps: Mapping[str, tuple[Round, Round]]) -> Iterator[None]:
    """While open, floating inputs and outputs of these modules go through a function of their own, and so do
    the gradients that come in at the outputs and leave at the inputs. {path: (of forward, of gradients)}
    """
    by_id = {id(model.get_submodule(path)): tap for path, tap in taps.items()}
    original: Callable[..., Any] = nn.Module.__call__

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        tap = by_id.get(id(module))
        if tap is None:
            return original(module, *args, **kwargs)
        through = partial(_through, tap=tap)
        args, kwargs = tree_map(through, (args, kwargs))
        return tree_map(through, original(module, *args, **kwargs))

    nn.Module.__call__ = call  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.__call__ = original  # type: ignore[method-assign]


@contextmanager
def run_in_formats(model: nn.Module, chosen: Sequence[ModuleFormats]) -> Iterator[None]:
    """While open, each chosen module's inputs, outputs and gradients are rounded; its weights are, once.

    The weights must be a working copy. What lies between the finest modules, and the gradients of
    parameters, stay in FP32.
    """
    if not chosen:
        yield
        return
    formats = formats_by_module(model, chosen)
    with torch.no_grad():
        for path, item in formats.items():
            for parameter in model.get_submodule(path).parameters():
                if parameter.is_floating_point():
                    parameter.data.copy_(rounded(parameter.data, item.forward))
    taps = {
        path: (partial(rounded, name=item.forward), partial(rounded, name=item.gradient))
        for path, item in formats.items()
    }
    with tapped(model, taps):
        yield


def _through(value: Any, tap: tuple[Round, Round]) -> Any:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    tapped_by: Any = _Tapped.apply  # typed by some versions of torch only
    return tapped_by(value, *tap)

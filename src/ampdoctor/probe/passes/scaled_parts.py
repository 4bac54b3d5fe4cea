"""Parts of a model whose backward runs at a scale of their own, beside the loss scale."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ampdoctor.probe.passes.wide_modules import module_at
from ampdoctor.probe.plan import ScaledModule

_LOW = (torch.float16, torch.bfloat16)


class _ScaledGradient(torch.autograd.Function):
    """The tensor as it is, or in FP32; its gradient times a factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float, wide: bool) -> Tensor:
        ctx.factor, ctx.dtype = factor, x.dtype
        return x.float() if wide else x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return (gradient * ctx.factor).to(ctx.dtype), None, None


def gradient_enters(outputs: Any, factor: float, device: str) -> Any:
    """What a part returns, for its backward to run at ``factor``.

    Under autocast it leaves in FP32: what comes back is multiplied before it is rounded to the low precision.
    """
    autocasts = torch.is_autocast_enabled(device)
    return tree_map(lambda y: _scaled(y, factor, autocasts), outputs)


def gradient_leaves(inputs: Any, factor: float) -> Any:
    """What a part is given, for the gradient to leave it as large as without ``factor``."""
    return tree_map(lambda x: _scaled(x, 1.0 / factor, False), inputs)


def divide_at_parameters(part: nn.Module, factor: float) -> list[torch.utils.hooks.RemovableHandle]:
    """Hooks by which the gradients of the part's own parameters arrive as large as without ``factor``."""
    inverse = 1.0 / factor
    return [p.register_hook(lambda g: g * inverse) for p in part.parameters() if p.requires_grad]


def shares_parameters(model: nn.Module, part: nn.Module) -> bool:
    """Whether a module outside the part holds one of its parameters: they cannot have two scales."""
    inside = {id(module) for module in part.modules()}
    own = {id(p) for p in part.parameters()}
    return any(
        id(p) in own for m in model.modules() if id(m) not in inside for p in m.parameters(recurse=False)
    )


@contextmanager
def scaled_apart(model: nn.Module, chosen: Sequence[ScaledModule], device: torch.device) -> Iterator[None]:
    """While open, the backward of each chosen module runs at the loss scale times its factor.

    Gradients of parameters are those without it. Raises ConfigError for a path that the model does not have.
    """
    if not chosen:
        yield
        return
    parts = [(module_at(model, item.path), item.factor) for item in chosen]
    factors = {id(part): factor for part, factor in parts}
    original: Callable[..., Any] = nn.Module.__call__

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        factor = factors.get(id(module))
        if factor is None:
            return original(module, *args, **kwargs)
        args, kwargs = gradient_leaves((args, kwargs), factor)
        return gradient_enters(original(module, *args, **kwargs), factor, device.type)

    hooks = [hook for part, factor in parts for hook in divide_at_parameters(part, factor)]
    nn.Module.__call__ = call  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.__call__ = original  # type: ignore[method-assign]
        for hook in hooks:
            hook.remove()


def _scaled(value: Any, factor: float, widens: bool) -> Any:
    if not isinstance(value, Tensor):
        return value
    wide = widens and value.dtype in _LOW
    if not value.requires_grad:  # a checkpoint that recomputes the part later needs the same dtype
        return value.float() if wide else value
    scaled: Any = _ScaledGradient.apply  # typed by some versions of torch only
    return scaled(value, factor, wide)

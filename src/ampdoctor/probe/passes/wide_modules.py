"""Modules that a candidate runs in FP32: autocast off, inputs widened, outputs as they come or cast back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ampdoctor.errors import ConfigError
from ampdoctor.probe.plan import WideModule

_LOW = (torch.float16, torch.bfloat16)


@contextmanager
def run_wide(
    model: nn.Module, chosen: Sequence[WideModule], device: torch.device, low: torch.dtype
) -> Iterator[None]:
    """While open, each chosen module's calls run in FP32. ``low``: the dtype that outputs are cast back to.

    Raises ConfigError for a path that the model does not have.
    """
    if not chosen:
        yield
        return
    wide = {id(module_at(model, item.path)): item for item in chosen}
    original: Callable[..., Any] = nn.Module.__call__

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        item = wide.get(id(module))
        if item is None:
            return original(module, *args, **kwargs)
        args, kwargs = tree_map(_widen, (args, kwargs))
        with torch.autocast(device.type, enabled=False):
            outputs = original(module, *args, **kwargs)
        return tree_map(lambda value: _cast_back(value, low), outputs) if item.casts_back else outputs

    # Not a hook: see ``ModuleStack.watch``, which wraps this call and so gives the module its own casts.
    nn.Module.__call__ = call  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.__call__ = original  # type: ignore[method-assign]


@contextmanager
def only_the_model_is_low(
    model: nn.Module,
    autocast: Callable[[], AbstractContextManager[None]],
    cast_input: Callable[[Tensor], Tensor],
    chosen: Sequence[WideModule],
) -> Iterator[None]:
    """While open, each call of the model from outside it runs under ``autocast`` on cast inputs, and gives
    its low-precision outputs in FP32.

    A module of the model's that the loss calls by itself counts; one that is recomputed in backward does not.
    """
    inside = {id(module) for module in model.modules()}
    wide = {id(module_at(model, item.path)) for item in chosen}
    original: Callable[..., Any] = nn.Module.__call__
    depth = 0

    def narrow(value: Any) -> Any:
        return cast_input(value) if isinstance(value, Tensor) and value.is_floating_point() else value

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        nonlocal depth
        in_backward = torch._C._current_graph_task_id() != -1
        if depth or in_backward or id(module) not in inside:
            return original(module, *args, **kwargs)
        depth += 1
        try:
            if id(module) not in wide:
                args, kwargs = tree_map(narrow, (args, kwargs))
            with autocast():
                outputs = original(module, *args, **kwargs)
        finally:
            depth -= 1
        return tree_map(_widen, outputs)

    nn.Module.__call__ = call  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.__call__ = original  # type: ignore[method-assign]


def wide_tensors(model: nn.Module, chosen: Sequence[WideModule]) -> frozenset[int]:
    """id() of every weight and buffer of the chosen modules and of those inside them.

    A weight that is shared with another module counts: there is one tensor, and it has one dtype.
    """
    modules = [module_at(model, item.path) for item in chosen]
    return frozenset(id(t) for module in modules for t in (*module.parameters(), *module.buffers()))


def module_at(model: nn.Module, path: str) -> nn.Module:
    """The module; raises ConfigError where there is none of this path."""
    try:
        return model.get_submodule(path)
    except AttributeError as error:
        raise ConfigError(
            f"the model has no module {path!r}", "paths are those of model.named_modules(); '' is the model"
        ) from error


def _widen(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in _LOW else value


def _cast_back(value: Any, low: torch.dtype) -> Any:
    return value.to(low) if isinstance(value, Tensor) and value.dtype == torch.float32 else value

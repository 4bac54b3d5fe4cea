"""Compiled models, made to run eagerly: ampdoctor watches single ops, and a compiled graph shows none."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

Undo = Callable[[], None]


def uncompile(model: torch.nn.Module) -> tuple[torch.nn.Module, tuple[str, ...]]:
    """The model as it was before torch.compile, and the paths of the modules that were compiled.

    Changes the model in place: wrapped children are replaced by what they wrap, and ``module.compile()`` is
    undone. Hooks on the wrappers themselves are lost with them.
    """
    root, compiled, _ = _uncompiled(model)
    return root, compiled


@contextmanager
def uncompiled(model: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, tuple[str, ...]]]:
    """The same, with everything compiled again as it was afterwards."""
    root, compiled, undo = _uncompiled(model)
    try:
        yield root, compiled
    finally:
        for put_back in undo:
            put_back()


def _uncompiled(model: torch.nn.Module) -> tuple[torch.nn.Module, tuple[str, ...], list[Undo]]:
    compiled: dict[str, None] = {}
    undo: list[Undo] = []
    root = _unwrapped(model)
    if root is not model:
        compiled[""] = None
    pending = [("", root)]
    seen: set[int] = set()
    while pending:
        path, module = pending.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        call = getattr(module, "_compiled_call_impl", None)
        if call is not None:
            undo.append(partial(setattr, module, "_compiled_call_impl", call))
            module._compiled_call_impl = None
            compiled[path] = None
        if isinstance(module, torch.jit.ScriptModule):
            continue  # Its children cannot be assigned, nor compiled.
        for name, child in reversed(list(module._modules.items())):  # The first is taken off the end.
            if child is None:
                continue
            below = f"{path}.{name}" if path else name
            eager = _unwrapped(child)
            if eager is not child:
                undo.append(partial(module._modules.__setitem__, name, child))
                module._modules[name] = eager
                compiled[below] = None
            pending.append((below, eager))
    return root, tuple(sorted(compiled)), undo


def eagerly(step: Callable[[torch.nn.Module, Any], Any]) -> Callable[[torch.nn.Module, Any], Any]:
    """The same step with every ``@torch.compile`` function inside it run as plain Python."""

    def eager_step(model: torch.nn.Module, batch: Any) -> Any:
        # Without dynamo in the process nothing is compiled, and set_stance would import it (over a second).
        if "torch._dynamo" not in sys.modules:
            return step(model, batch)
        with torch.compiler.set_stance("force_eager"):
            return step(model, batch)

    return eager_step


def _unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    # Not isinstance of OptimizedModule: naming that class imports dynamo.
    while type(module).__name__ == "OptimizedModule" and isinstance(
        inner := module._modules.get("_orig_mod"), torch.nn.Module
    ):
        module = inner
    return module

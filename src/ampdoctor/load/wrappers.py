"""Models as they are below what wraps them: torch.compile, DataParallel, DDP, and shards on several devices.

ampdoctor watches single ops on whole tensors; a compiled graph shows none, a wrapper prefixes every name, and
what wraps for several processes counts the passes it sees and averages their gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from ampdoctor.load.spread import reduces, undistributed
from ampdoctor.load.workload import Workload

Undo = Callable[[], object]


def unwrap(model: nn.Module) -> tuple[nn.Module, tuple[str, ...]]:
    """The model without its wrappers, and the paths of the modules that were compiled.

    Changes the model in place: wrapped children are replaced by what they wrap, ``module.compile()`` is
    undone, and sharded weights are whole. Hooks on the wrappers themselves are lost with them.
    """
    found = _Unwrapping(model)
    found.open()
    return found.root, found.compiled


@contextmanager
def unwrapped(model: nn.Module) -> Iterator[tuple[nn.Module, tuple[str, ...]]]:
    """The same, with everything wrapped again as it was afterwards."""
    found = _Unwrapping(model)
    try:
        found.open()
        yield found.root, found.compiled
    finally:
        for put_back in reversed(found.undo):
            put_back()


@contextmanager
def without_wrappers(workload: Workload) -> Iterator[Workload]:
    """The workload with its model unwrapped while open."""
    with unwrapped(workload.model) as (model, compiled):
        yield replace(workload, model=model, compiled=compiled)


class _Unwrapping:
    """The walk from the root down, and how to undo what it did."""

    def __init__(self, model: nn.Module) -> None:
        self.undo: list[Undo] = []
        self._compiled: dict[str, None] = {}
        self._reduced: list[nn.Module] = []
        """What DDP wrapped."""
        self._opened: dict[int, nn.Module] = {}
        self.root = model

    @property
    def compiled(self) -> tuple[str, ...]:
        """Paths of the modules that were."""
        return tuple(sorted(self._compiled))

    def open(self) -> None:
        """Takes the wrappers off; after an exception as well, ``undo`` has what puts back what was done."""
        self.root = self._inside("", self.root)
        self._walk()
        undistributed(self.root, self._reduced, self.undo)

    def _walk(self) -> None:
        pending = [("", self.root)]
        seen: set[int] = set()
        while pending:
            path, module = pending.pop()
            if id(module) in seen:
                continue
            seen.add(id(module))
            call = getattr(module, "_compiled_call_impl", None)
            if call is not None:
                self.undo.append(partial(setattr, module, "_compiled_call_impl", call))
                module._compiled_call_impl = None
                self._compiled[path] = None
            if isinstance(module, torch.jit.ScriptModule):
                continue  # Its children cannot be assigned, nor compiled.
            for name, child in reversed(list(module._modules.items())):  # The first is taken off the end.
                if child is None:
                    continue
                below = f"{path}.{name}" if path else name
                inside = self._inside(below, child)
                if inside is not child:
                    self.undo.append(partial(module._modules.__setitem__, name, child))
                    module._modules[name] = inside
                pending.append((below, inside))

    def _inside(self, path: str, module: nn.Module) -> nn.Module:
        """What the wrappers at ``path`` wrap; the module itself where it is none."""
        while True:
            # Not isinstance of OptimizedModule: naming that class imports dynamo.
            compiles = type(module).__name__ == "OptimizedModule"
            parallel = isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel))
            if not (compiles or parallel):
                return module
            inside = module._modules.get("_orig_mod" if compiles else "module")
            if not isinstance(inside, nn.Module):
                return module
            if compiles:
                self._compiled[path] = None
            elif id(module) not in self._opened:
                self._opened[id(module)] = module
                self._open(module, inside)
                if reduces(module):
                    self._reduced.append(inside)
            module = inside

    def _open(self, wrapper: nn.Module, inside: nn.Module) -> None:
        """A loss that holds the wrapper calls what it wraps; one that is handed the model and writes
        ``model.module`` finds it."""
        self._lay_over(wrapper, "forward", inside)
        if not hasattr(inside, "module"):
            self._lay_over(inside, "module", inside)

    def _lay_over(self, module: nn.Module, name: str, value: Any) -> None:
        attributes = module.__dict__
        if name in attributes:
            self.undo.append(partial(attributes.__setitem__, name, attributes[name]))
        else:
            self.undo.append(partial(attributes.pop, name, None))
        attributes[name] = value

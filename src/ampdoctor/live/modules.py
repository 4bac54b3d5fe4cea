"""Calls of modules, casts of them, states saved and loaded, and autocast regions, as events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ampdoctor.live.around import Around, parameters_of


class ModuleCalls:
    """Wrappers for what modules, state dicts and autocast are called for."""

    def __init__(self, around: Around) -> None:
        self.around = around
        self.recorder = around.recorder
        self.listener = around.listener

    # -- modules

    def call(self, original: Any) -> Any:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self.around.module_depth or self.around.busy or self.around.off:
                return original(module, *args, **kwargs)
            self.around.module_depth += 1
            try:
                with self.around.mode.aside():
                    self.recorder.book.stale = True
                    self.recorder.emit("forward", subject=self.recorder.number(module))
                    return self.listener.root(module, args, kwargs, lambda: original(module, *args, **kwargs))
            finally:
                self.around.module_depth -= 1

        return call

    def cast(self, original: Any) -> Any:
        def cast(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self.around.off or self.around.module_depth:
                return original(module, *args, **kwargs)
            with self.around.aside():
                before = {id(p): p.dtype for p in module.parameters()}
                result = original(module, *args, **kwargs)
                low = [p for p in module.parameters() if p.dtype in (torch.float16, torch.bfloat16)]
                cast_now = [p for p in low if before.get(id(p)) not in (None, p.dtype)]
            if cast_now:
                self.recorder.emit(
                    "cast", subject=self.recorder.number(module), subject_type=type(module).__name__,
                    dtype=str(cast_now[0].dtype).removeprefix("torch."), value=float(len(cast_now)),
                )  # fmt: skip
            return result

        return cast

    # -- states

    def loads(self, what: str) -> Callable[[Any], Any]:
        def make(original: Any) -> Any:
            def load_state_dict(owner: Any, *args: Any, **kwargs: Any) -> Any:
                if self.around.off:
                    return original(owner, *args, **kwargs)
                with self.around.aside():
                    result = original(owner, *args, **kwargs)
                    if isinstance(owner, Optimizer):
                        self.recorder.book.know(parameters_of(owner))
                self._note_state("load", what, owner)
                return result

            return load_state_dict

        return make

    def state_dict(self, what: str) -> Callable[[Any], Any]:
        def make(original: Any) -> Any:
            def state_dict(owner: Any, *args: Any, **kwargs: Any) -> Any:
                if self.around.off:
                    return original(owner, *args, **kwargs)
                with self.around.aside():
                    result = original(owner, *args, **kwargs)
                self._note_state("save", what, owner)
                return result

            return state_dict

        return make

    def _note_state(self, kind: Any, what: str, owner: Any) -> None:
        empty = (
            isinstance(owner, Optimizer)
            and not owner.state
            and not any("momentum" in g or "betas" in g for g in owner.param_groups)
        )
        self.recorder.emit(
            kind, subject=self.recorder.number(owner), subject_type=type(owner).__name__, detail=what,
            value=0.0 if empty else 1.0,
        )  # fmt: skip

    # -- autocast

    def autocast(self, kind: Any) -> Callable[[Any], Any]:
        def make(original: Any) -> Any:
            def enter_or_exit(region: Any, *args: Any) -> Any:
                if not (self.around.off or self.around.module_depth) and getattr(region, "_enabled", False):
                    self.recorder.emit(
                        kind, subject=self.recorder.number(region), subject_type=region.device,
                        dtype=str(region.fast_dtype).removeprefix("torch."),
                        detail="" if region._cache_enabled else "no cache",
                    )  # fmt: skip
                elif self.around.module_depth and not self.around.off and getattr(region, "_enabled", False):
                    self.listener.autocast_inside(region.fast_dtype)
                with self.around.aside():
                    return original(region, *args)

            return enter_or_exit

        return make

"""``LoopWatch``: what a training loop calls of torch (scaler, optimizers, clipping ...) becomes events."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer, lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ampdoctor.live.around import Around, Listener
from ampdoctor.live.backwards import GradientCalls
from ampdoctor.live.modules import ModuleCalls
from ampdoctor.live.optimizers import OptimizerCalls
from ampdoctor.live.ranks import Ranks
from ampdoctor.live.recorder import Recorder
from ampdoctor.live.scalers import ScalerCalls

Wrapper = Callable[[Any], Any]
"""From the original to what stands in its place."""


class LoopWatch:
    """While open, what the script does around its steps is recorded."""

    is_open = False
    """One of this process is."""

    def __init__(self, recorder: Recorder, listener: Listener) -> None:
        self.around = Around(recorder, listener)
        self.ranks = Ranks(self.around)
        self._undo = ExitStack()

    def __enter__(self) -> LoopWatch:
        LoopWatch.is_open = True
        self._undo.callback(setattr, LoopWatch, "is_open", False)
        for owner, name, make in _wrappers(self.around, self.ranks):
            original = getattr(owner, name)
            own = name in vars(owner)
            setattr(owner, name, wraps(original)(make(original)))
            self._undo.callback(*((setattr, owner, name, original) if own else (delattr, owner, name)))
        optimizers = OptimizerCalls(self.around)
        for scheduler in _schedulers():
            original = scheduler.step
            scheduler.step = wraps(original)(optimizers.scheduler(original))
            self._undo.callback(setattr, scheduler, "step", original)
        self._undo.callback(register_optimizer_step_pre_hook(optimizers.before_optimizer).remove)
        self._undo.callback(register_optimizer_step_post_hook(optimizers.after_optimizer).remove)
        self._undo.enter_context(self.around.mode)
        return self

    def __exit__(self, *error: object) -> None:
        self._undo.close()


def _wrappers(around: Around, ranks: Ranks) -> Iterator[tuple[Any, str, Wrapper]]:
    """What is replaced: its owner, its name, and by what."""
    modules, gradients, scalers = ModuleCalls(around), GradientCalls(around), ScalerCalls(around)
    yield nn.Module, "__call__", modules.call
    yield nn.Module, "half", modules.cast
    yield nn.Module, "to", modules.cast
    for owner, what in ((nn.Module, "model"), (Optimizer, "optimizer"), (GradScaler, "scaler")):
        yield owner, "load_state_dict", modules.loads(what)
        yield owner, "state_dict", modules.state_dict(what)
    yield torch.autocast, "__enter__", modules.autocast("autocast_enter")
    yield torch.autocast, "__exit__", modules.autocast("autocast_exit")
    yield nn.Module, "zero_grad", gradients.zero_grad
    yield Optimizer, "zero_grad", gradients.zero_grad
    yield Optimizer, "add_param_group", gradients.add_param_group
    yield Tensor, "backward", gradients.tensor_backward
    yield torch.autograd, "backward", gradients.backward
    yield torch.autograd, "grad", gradients.grad
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        yield nn.utils, name, gradients.clip
        yield nn.utils.clip_grad, name, gradients.clip
    for name in ("isfinite", "isnan", "isinf"):
        yield math, name, around.mode.checks
    yield GradScaler, "scale", scalers.scale
    yield GradScaler, "unscale_", scalers.unscale
    yield GradScaler, "_unscale_grads_", scalers.unscale_grads
    yield GradScaler, "step", scalers.step
    yield GradScaler, "update", scalers.update
    yield GradScaler, "get_scale", scalers.get_scale
    if dist.is_available():
        yield dist, "destroy_process_group", ranks.destroy
        yield dist.distributed_c10d, "destroy_process_group", ranks.destroy


def _schedulers() -> Iterator[Any]:
    """torch's schedulers that have a step of their own."""
    for scheduler in vars(lr_scheduler).values():
        if (
            isinstance(scheduler, type)
            and scheduler.__module__ == lr_scheduler.__name__
            and "step" in vars(scheduler)
        ):
            yield scheduler

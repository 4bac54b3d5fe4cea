"""``apply(model, plan)``: the user's own training follows a plan."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ampdoctor.errors import ConfigError
from ampdoctor.remedy.plan import TreatmentPlan, check_paths
from ampdoctor.remedy.plan_file import read_plan

_LOW = (torch.float16, torch.bfloat16)


class Applied:
    """A plan at work on a model, until ``remove()`` or the end of a ``with`` block."""

    def __init__(self, model: nn.Module, plan: TreatmentPlan) -> None:
        self.plan = plan
        self._device = next((p.device.type for p in model.parameters()), "cpu")
        self._wide: list[tuple[nn.Module, type[nn.Module]]] = []
        chosen = [(path, model.get_submodule(path)) for path in plan.fp32]
        for path, module in chosen:
            _refuse(path, module)
        for _, module in chosen:
            built = type(module)
            # A class and no wrapper around forward: copies of the model follow the plan by themselves.
            module.__class__ = _in_fp32(built, self._device, plan.output == "cast")
            self._wide.append((module, built))

    def scaler(self, **settings: Any) -> torch.amp.GradScaler:
        """A GradScaler that starts from the plan's loss scale; disabled where the plan is for BF16."""
        if self.plan.loss_scale is not None:
            settings = {"init_scale": self.plan.loss_scale, **settings}
        return torch.amp.GradScaler(self._device, enabled=self.plan.dtype != "bfloat16", **settings)

    def autocast(self, dtype: torch.dtype = torch.float16) -> AbstractContextManager[Any]:
        """Autocast in the plan's low precision, ``dtype`` where it names none.

        Around the step; where the plan has ``loss_fp32``, around the call of the model alone.
        """
        return torch.autocast(self._device, torch.bfloat16 if self.plan.dtype == "bfloat16" else dtype)

    def remove(self) -> None:
        """Nothing; the model runs as it did. A second call does nothing."""
        for module, built in self._wide:
            module.__class__ = built
        self._wide.clear()

    def __enter__(self) -> Applied:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def apply(model: nn.Module, plan: TreatmentPlan | str | Path) -> Applied:
    """A handle on ``model``, whose modules named by ``plan`` (or in its file) run in FP32 from now on.

    Parameters, ``state_dict`` and module names stay as they are. Raises ConfigError for a plan that does not
    fit, with the nearest name, or whose modules hold weights in low precision.
    """
    if not isinstance(plan, TreatmentPlan):
        plan = read_plan(Path(plan))
    check_paths(plan, (path for path, _ in model.named_modules()))
    return Applied(model, plan)


def _refuse(path: str, module: nn.Module) -> None:
    low = next((n for n, p in module.named_parameters() if p.dtype in _LOW), None)
    if low is not None:
        raise ConfigError(
            f"fp32: {path or 'the model'} holds {low} in low precision",
            "keep the weights in FP32 and train under autocast, or call .float() on this module first",
        )
    if "forward" in vars(module):
        raise ConfigError(f"fp32: {path or 'the model'} has a forward of its own, set on the module itself")


def _in_fp32(built: type[nn.Module], device: str, casts_back: bool) -> type[nn.Module]:
    """A class like ``built`` whose forward runs without autocast, on widened inputs."""
    inside: Callable[..., Any] = built.forward

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        low = torch.get_autocast_dtype(device)
        args, kwargs = tree_map(_widen, (args, kwargs))
        with torch.autocast(device, enabled=False):
            outputs = inside(self, *args, **kwargs)
        if not casts_back:
            return outputs
        return tree_map(
            lambda y: y.to(low) if isinstance(y, Tensor) and y.dtype == torch.float32 else y, outputs
        )

    return type(built.__name__, (built,), {"forward": forward, "__module__": built.__module__})


def _widen(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in _LOW else value

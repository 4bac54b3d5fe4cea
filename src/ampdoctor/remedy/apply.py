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
from ampdoctor.probe.passes.scaled_parts import (
    gradient_enters,
    gradient_leaves,
    shares_parameters,
)
from ampdoctor.remedy.plan import TreatmentPlan, check_paths
from ampdoctor.remedy.plan_file import read_plan

Forward = Callable[..., Any]
_LOW = (torch.float16, torch.bfloat16)


class Applied:
    """A plan at work on a model, until ``remove()`` or the end of a ``with`` block."""

    def __init__(self, model: nn.Module, plan: TreatmentPlan) -> None:
        self.plan = plan
        self._device = next((p.device.type for p in model.parameters()), "cpu")
        self._changed: list[tuple[nn.Module, type[nn.Module], type[nn.Module]]] = []
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        chosen = [(path, model.get_submodule(path)) for path in dict.fromkeys((*plan.fp32, *plan.scales))]
        for path, module in chosen:
            _refuse(plan, path, module, model)
        for path, module in chosen:
            built = type(module)
            # A class and no wrapper around forward: copies of the model follow the plan by themselves.
            forward = built.forward
            if path in plan.fp32:
                forward = _in_fp32(forward, self._device, plan.output == "cast")
            if path in plan.scales:
                forward = _at_scale(forward, self._device, plan.scales[path])
                self._divide(module, plan.scales[path], _around(model, path))
            follows = _following(built, forward)
            module.__class__ = follows
            self._changed.append((module, built, follows))

    def _divide(self, part: nn.Module, factor: float, around: list[nn.Module]) -> None:
        """Takes the factor out of the gradients of a part's parameters, those that come later included."""
        inverse = 1.0 / factor

        def divided(gradient: Tensor) -> Tensor:
            return gradient * inverse

        def hook_those_without(module: nn.Module, recurse: bool = False) -> None:
            for parameter in module.parameters(recurse):
                # fully_shard and deepcopy put other tensors in a parameter's place, without its hooks.
                if parameter.requires_grad and divided not in (parameter._backward_hooks or {}).values():
                    self._hooks.append(parameter.register_hook(divided))

        outside_the_graph = torch.compiler.disable(hook_those_without)

        def before(module: nn.Module, args: Any) -> None:
            if not torch.compiler.is_compiling():
                hook_those_without(module)
            # Hooks cannot be set in a graph. fully_shard ends it before each of its modules anyway.
            elif _is_sharded(module):
                outside_the_graph(module, True)

        def before_all(module: nn.Module, args: Any) -> None:
            is_copy = module is not part
            if torch.compiler.is_compiling() and (is_copy or any(_is_sharded(m) for m in around)):
                outside_the_graph(module, True)

        self._hooks.append(part.register_forward_pre_hook(before_all))
        for module in part.modules():
            self._hooks.append(module.register_forward_pre_hook(before))
            hook_those_without(module)

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
        for module, built, follows in self._changed:
            follows.follows_a_plan = False  # type: ignore[attr-defined]  # also where a class was derived from it
            if type(module) is follows:
                module.__class__ = built
        for hook in self._hooks:
            hook.remove()
        self._changed.clear()
        self._hooks.clear()

    def __enter__(self) -> Applied:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def apply(model: nn.Module, plan: TreatmentPlan | str | Path) -> Applied:
    """A handle on ``model``, whose modules named by ``plan`` (or in its file) follow it from now on.

    Parameters, ``state_dict`` and module names stay as they are. Raises ConfigError for a plan that does not
    fit, with the nearest name, or whose modules hold weights in low precision.
    """
    if not isinstance(plan, TreatmentPlan):
        plan = read_plan(Path(plan))
    if plan.lines:
        line = plan.lines[0]
        raise ConfigError(
            f"lines: {line.file}:{line.line} is to be edited, and no handle can do that",
            "change the line and take it out of the plan; `ampdoctor scan --plan` measures with it",
        )
    check_paths(plan, (path for path, _ in model.named_modules()))
    return Applied(model, plan)


def _refuse(plan: TreatmentPlan, path: str, module: nn.Module, model: nn.Module) -> None:
    key, name = "fp32" if path in plan.fp32 else "scales", path or "the model"
    low = next((n for n, p in module.named_parameters() if p.dtype in _LOW), None)
    if low is not None:
        raise ConfigError(
            f"{key}: {name} holds {low} in low precision",
            "keep the weights in FP32 and train under autocast, or call .float() on this module first",
        )
    if "forward" in vars(module):
        raise ConfigError(f"{key}: {name} has a forward of its own, set on the module itself")
    if path in plan.scales and shares_parameters(model, module):
        raise ConfigError(
            f"scales: {name} shares a parameter with a module outside it",
            "name the module that holds both: a parameter has one scale",
        )


def _around(model: nn.Module, path: str) -> list[nn.Module]:
    """The modules that hold the one at ``path``."""
    steps = path.split(".") if path else []
    return [model.get_submodule(".".join(steps[:depth])) for depth in range(len(steps))]


def _is_sharded(module: nn.Module) -> bool:
    """Whether fully_shard has it; by the name of the class: its import is slow."""
    return any(base.__name__ == "FSDPModule" for base in type(module).__mro__)


def _following(built: type[nn.Module], forward: Forward) -> type[nn.Module]:
    """A class like ``built`` with this forward, as long as its ``follows_a_plan`` holds."""
    as_built: Forward = built.forward

    def chosen(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return (forward if self.follows_a_plan else as_built)(self, *args, **kwargs)

    body = {"forward": chosen, "follows_a_plan": True, "__module__": built.__module__}
    return type(built.__name__, (built,), body)


def _in_fp32(inside: Forward, device: str, casts_back: bool) -> Forward:
    """The forward without autocast, on widened inputs."""

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

    return forward


def _at_scale(inside: Forward, device: str, factor: float) -> Forward:
    """The forward whose backward runs at ``factor`` times the loss scale."""

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = gradient_leaves((args, kwargs), factor)
        return gradient_enters(inside(self, *args, **kwargs), factor, device)

    return forward


def _widen(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in _LOW else value

"""A script's optimizer as one that a probe can step: the same rule and state, on the probed weights alone."""

from __future__ import annotations

import collections
import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ampdoctor.load.spread import gathered, original_of


def twin_of(optimizer: torch.optim.Optimizer) -> Callable[[nn.Module], torch.optim.Optimizer]:
    """A function that gives a model an optimizer as the script's stands then; its steps leave that one alone.

    It holds those of the optimizer's parameters that the model has, with copies of their state, floating
    tensors of it in the parameter's dtype at that moment.
    """

    def build(model: nn.Module) -> torch.optim.Optimizer:
        own = {id(original_of(p)): p for p in model.parameters()}
        # no constructor: what the user's own class takes is not known here
        twin: Any = object.__new__(type(optimizer))
        twin.__dict__.update(optimizer.__dict__)
        for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
            setattr(twin, name, collections.OrderedDict())
        twin.param_groups = [
            {
                **{name: value for name, value in group.items() if name != "params"},
                "params": [own[id(p)] for p in group["params"] if id(p) in own],
            }
            for group in optimizer.param_groups
        ]
        twin.state = collections.defaultdict(dict)
        for parameter, values in optimizer.state.items():
            if id(parameter) in own:
                twin.state[own[id(parameter)]] = _as(own[id(parameter)], copy.deepcopy(values))
        return twin  # type: ignore[no-any-return]

    return build


def _as(parameter: Tensor, values: Any) -> Any:
    """The state where and as the parameter is now; torch itself does so when it loads one."""
    if not isinstance(values, dict):
        return values
    whole = {name: gathered(v) if isinstance(v, Tensor) else v for name, v in values.items()}
    return {
        name: value.to(parameter.device, parameter.dtype)
        if isinstance(value, Tensor) and value.is_floating_point() and value.shape == parameter.shape
        else value
        for name, value in whole.items()
    }

"""Weights that torch.distributed has spread over processes, as whole tensors that it does not watch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

Undo = Callable[[], object]


def reduces(module: nn.Module) -> bool:
    """It averages gradients over processes: DDP, by hooks that count the backward passes they see."""
    return isinstance(module, nn.parallel.DistributedDataParallel)


def undistributed(model: nn.Module, reduced: Iterable[nn.Module], undo: list[Undo]) -> None:
    """Changes ``model`` in place into the one it would be on a single device; ``undo`` gets what puts back.

    Every DTensor (FSDP2, tensor parallelism) is a whole parameter, the hooks that torch.distributed put on
    its module are off, and a parameter of a ``reduced`` module is one that shares the memory and not the
    hooks. With several processes a DTensor is gathered, so all of them must come here.
    """
    watched = {id(p) for module in reduced for p in module.parameters()}
    instead: dict[int, Tensor] = {}
    spread = False
    for module in list(model.modules()):
        if isinstance(module, torch.jit.ScriptModule):
            continue
        for tensors in (module._parameters, module._buffers):
            for name, tensor in list(tensors.items()):
                if tensor is None or not (id(tensor) in watched or is_spread(tensor)):
                    continue
                spread |= is_spread(tensor)
                if id(tensor) not in instead:  # tied weights stay tied
                    instead[id(tensor)] = _whole(tensor)
                undo.append(partial(setattr, module, name, tensor))
                # Not in the dict: recurrent modules keep a list of their weights besides.
                setattr(module, name, instead[id(tensor)])
    if spread:
        for module in model.modules():
            for hooks in (module._forward_pre_hooks, module._forward_hooks):
                _without_distributed(hooks, undo)


def own_policy(model: nn.Module) -> str:
    """``param_dtype bfloat16``: the precision that FSDP2's MixedPrecisionPolicy asks for, else ''."""
    for module in model.modules():
        state = getattr(module, "_get_fsdp_state", None)
        policy = getattr(state(), "_mp_policy", None) if callable(state) else None
        asked = {
            name: getattr(policy, name, None) for name in ("param_dtype", "reduce_dtype", "output_dtype")
        }
        words = [f"{name} {str(dtype).removeprefix('torch.')}" for name, dtype in asked.items() if dtype]
        if words:
            return ", ".join(words)
    return ""


def original_of(parameter: Tensor) -> Tensor:
    """The parameter that this one stands in for; itself where it stands for none."""
    return getattr(parameter, "stands_for", parameter)


def gathered(tensor: Tensor) -> Tensor:
    """The whole of a DTensor, as a plain tensor; any other as it is."""
    return tensor.full_tensor() if is_spread(tensor) else tensor  # type: ignore[attr-defined]


def is_spread(tensor: Tensor) -> bool:
    distributed = sys.modules.get("torch.distributed.tensor")
    return distributed is not None and isinstance(tensor, distributed.DTensor)


def _whole(tensor: Tensor) -> Tensor:
    """A leaf of its own with the same memory, where one process holds all of it."""
    with torch.no_grad():
        plain = gathered(tensor).detach()
    if not isinstance(tensor, nn.Parameter):
        return plain
    whole: Any = nn.Parameter(plain, tensor.requires_grad)
    # What the user wrote on it; an asynchronous copy's marks and the like would not be theirs.
    whole.__dict__.update({k: v for k, v in vars(tensor).items() if not k.startswith("_")})
    whole.stands_for = tensor
    return whole  # type: ignore[no-any-return]


def _without_distributed(hooks: dict[int, Any], undo: list[Undo]) -> None:
    before = dict(hooks)

    def put_back() -> None:
        hooks.clear()
        hooks.update(before)

    for key, hook in before.items():
        if _home(hook).startswith("torch.distributed"):
            undo.append(put_back)
            del hooks[key]


def _home(hook: Any) -> str:
    """The module in which a hook was written."""
    while isinstance(hook, partial):
        hook = hook.func
    return str(getattr(hook, "__module__", ""))

"""A captured loss as data: its calls, roots, weights, batch and generators, for a bundle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ampdoctor.errors import LoadError
from ampdoctor.facts.bundle import BATCH, GROUPS, OPTIMIZER, RANDOM, WEIGHTS, Call, OptimizerFacts, Root
from ampdoctor.load.rebuilt import recipe_of
from ampdoctor.load.script.replay import Replay, Roots
from ampdoctor.load.script.tape import Leaf, Node, Ref
from ampdoctor.load.script.tape_calls import encoded, name_of
from ampdoctor.load.script.values import mapped
from ampdoctor.load.spread import is_spread, original_of
from ampdoctor.load.workload import Workload
from ampdoctor.probe.watch.location import source_of


@dataclass
class Kept:
    """What a bundle keeps of a workload, under the names that ``facts.bundle.Bundle`` has for it."""

    calls: tuple[Call, ...] = ()
    end: tuple[int, int] = (0, 0)
    roots: tuple[Root, ...] = ()
    ties: dict[str, str] = field(default_factory=dict)
    frozen: tuple[str, ...] = ()
    evaluating: tuple[str, ...] = ()
    differentiated: tuple[int, ...] = ()
    optimizer: OptimizerFacts | None = None
    tensors: dict[str, dict[str, Tensor]] = field(default_factory=lambda: {group: {} for group in GROUPS})


def check_whole(model: nn.Module) -> None:
    """Nothing; LoadError for weights that lie in parts on several processes: they cannot be kept by one."""
    if any(is_spread(p) for p in model.parameters()):
        raise LoadError("its weights are in parts on several processes")


def kept_of(workload: Workload, optimizer: torch.optim.Optimizer | None) -> Kept:
    """What is kept of a workload whose step is a ``Replay``; its model is without wrappers.

    Raises LoadError, with what it is, for what cannot be written down.
    """
    replay, model = workload.step, workload.model
    assert isinstance(replay, Replay)
    kept = Kept()
    names: dict[int, str] = {}
    for name, tensor in _state(model):
        first = names.setdefault(id(original_of(tensor)), name)
        if first == name:
            kept.tensors[WEIGHTS][name] = _whole(tensor, name)
        else:
            kept.ties[name] = first
    kept.frozen = tuple(n for n, p in model.named_parameters() if not p.requires_grad)
    kept.evaluating = tuple(path for path, module in model.named_modules() if not module.training)
    top = dict(model.named_children()) if isinstance(model, Roots) else {"": model}
    kept.roots = tuple(
        Root(path, f"{type(root).__module__}.{type(root).__qualname__}", recipe_of(root))
        for path, root in top.items()
    )
    (batch,) = workload.batches
    kept.tensors[BATCH] = {str(i): _whole(t, "the batch") for i, t in enumerate(batch)}
    kept.differentiated = tuple(i for i, t in enumerate(batch) if t.requires_grad)
    _keep_calls(kept, replay, model, names)
    if optimizer is not None:
        try:
            kept.optimizer = _optimizer(optimizer, names, kept.tensors[OPTIMIZER])
        except LoadError:
            kept.tensors[OPTIMIZER] = {}  # the step is run again without it
    _unshare(kept.tensors)
    return kept


def _state(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _keep_calls(kept: Kept, replay: Replay, model: nn.Module, names: Mapping[int, str]) -> None:
    numbers = {id(node): number for number, node in enumerate(replay.nodes)}
    paths = {id(module): path for path, module in reversed(list(model.named_modules()))}
    beside: dict[int, str] = {}

    def seal(sealed: Ref | Leaf) -> Any:
        if isinstance(sealed, Ref):
            return {"made": [numbers[id(sealed.node)], sealed.index]}
        tensor = sealed.tensor
        if id(tensor) in replay.places:
            return {"batch": replay.places[id(tensor)].index}
        if id(tensor) in names:
            return {"parameter": names[id(tensor)]}
        key = beside.setdefault(id(tensor), f"tensor-{len(beside)}")
        kept.tensors[WEIGHTS][key] = _whole(tensor, "a tensor of the script")
        return {"tensor": key}

    def call_of(number: int, node: Node) -> Call:
        is_root = isinstance(node.call, nn.Module)
        if is_root and id(node.call) not in paths:
            raise LoadError(f"a {type(node.call).__name__} that it called is not part of its model")
        for generator, state in node.random:
            kept.tensors[RANDOM][f"{number}.{generator.device}"] = state.clone()
        return Call(
            function="" if is_root else name_of(node.call),
            root=paths[id(node.call)] if is_root else None,
            args=encoded(mapped(node.args, (Ref, Leaf), lambda s: s), seal),
            kwargs=encoded(node.kwargs, seal),
            line=source_of(node.line),
            autocast={device: str(dtype).removeprefix("torch.") for device, dtype in node.autocast.items()},
            grad=node.grad,
            in_place=node.in_place,
            random=tuple(str(generator.device) for generator, _ in node.random),
        )

    kept.calls = tuple(call_of(number, node) for number, node in enumerate(replay.nodes))
    kept.end = numbers[id(replay.end.node)], replay.end.index


def _optimizer(
    optimizer: torch.optim.Optimizer, names: Mapping[int, str], tensors: dict[str, Tensor]
) -> OptimizerFacts:
    def refused(_: Any) -> Any:
        raise LoadError("a tensor among an optimizer's values")

    def plain(value: Any) -> Any:
        return encoded(value.item() if isinstance(value, Tensor) and value.numel() == 1 else value, refused)

    groups = [
        {
            "params": [names[id(p)] for p in group["params"] if id(p) in names],
            "values": {key: plain(value) for key, value in group.items() if key != "params"},
        }
        for group in optimizer.param_groups
    ]
    state: dict[str, Any] = {}
    for parameter, values in optimizer.state.items():
        name = names.get(id(parameter))
        if name is None or not isinstance(values, dict):
            continue
        state[name] = {}
        for key, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"{name}|{key}"] = _whole(value, "the optimizer's state")
                state[name][key] = {"tensor": f"{name}|{key}"}
            else:
                state[name][key] = plain(value)
    return OptimizerFacts(f"{type(optimizer).__module__}.{type(optimizer).__qualname__}", groups, state)


def _whole(tensor: Tensor, name: str) -> Tensor:
    """A plain tensor on the CPU that a file can hold."""
    if type(tensor) not in (Tensor, nn.Parameter) and not isinstance(tensor, nn.Parameter):
        raise LoadError(f"a {type(tensor).__name__} in {name} cannot be written to a file")
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested or tensor.is_complex():
        raise LoadError(f"a tensor in {name} is sparse, quantized, nested or complex")
    return tensor.detach().cpu().contiguous()


def _unshare(tensors: dict[str, dict[str, Tensor]]) -> None:
    """Nothing; no two tensors share memory: a file has each for itself."""
    for group in tensors.values():
        seen: set[int] = set()
        for name, tensor in group.items():
            memory = tensor.untyped_storage().data_ptr()
            if memory in seen:
                group[name] = tensor.clone()
            seen.add(memory)

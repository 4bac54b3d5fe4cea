"""From a recorded loss to a Workload: the roots are its model, the leaves its batch, the replay its step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from ampdoctor.errors import LoadError
from ampdoctor.facts.words import AUTOCAST_DEVICES
from ampdoctor.load.script.buffers import Saved
from ampdoctor.load.script.tape import Leaf, Node, Ref, Tape
from ampdoctor.load.script.values import found_in, mapped, tensors_in
from ampdoctor.load.seeds import set_states
from ampdoctor.load.workload import Workload

__ampdoctor_replays_user_code__ = True
"""Frames here that have a ``replayed_line`` stand for that line of the script; see ``watch.location``."""


@dataclass(frozen=True)
class Place:
    """Where a tensor is in the batch."""

    index: int


class Roots(nn.Module):
    """The root modules of a script, by the names the script has for them."""


@dataclass(frozen=True, eq=False)
class Replay:
    """A workload's step: runs recorded calls again, and gives their loss."""

    nodes: list[Node]
    """Each after those that it needs."""
    end: Ref
    """The loss."""
    places: dict[int, Place]
    """Identity of a leaf's tensor -> its place in the batch."""
    dtypes: tuple[torch.dtype, ...]
    """Of the autocast in it."""

    def __call__(self, _: nn.Module, batch: Any) -> Any:
        # only where the script itself opened autocast: where a CPU imitates CUDA, the two are one
        devices = sorted({device for node in self.nodes for device in node.autocast})
        results: dict[int, list[Tensor]] = {}
        with _autocast_as_asked(self.dtypes[0] if self.dtypes else None):
            for node in self.nodes:
                results[id(node)] = _replay(node, devices, results, self.places, batch)
        return results[id(self.end.node)][self.end.index]


def workload_of(
    root: Tensor, tape: Tape, title: str
) -> tuple[Workload, tuple[torch.dtype, ...], list[Saved]]:
    """What led to ``root``, the dtypes of autocast in it, and buffers as they were before it.

    Its step is a ``Replay``. Raises LoadError where it cannot be run again.
    """
    ref = tape.ref(root)
    if ref is None:
        raise LoadError("the loss was made where no call was recorded")
    if root.numel() != 1:
        raise LoadError("backward began from a tensor that is no single number")
    nodes = _in_order(ref.node)
    leaves: list[Tensor] = []
    places: dict[int, Place] = {}
    for node in nodes:
        if node.refused is not None:
            raise node.refused
        for leaf in leaves_in((node.args, node.kwargs)):
            tensor = leaf.tensor
            if leaf.foreign:
                raise LoadError("a tensor in it was made by a computation that was not recorded")
            if isinstance(tensor, nn.Parameter) or (
                tensor.is_leaf and tensor.requires_grad and tensor.grad is not None
            ):
                continue
            if not tensor.is_inference() and tensor._version != leaf.version:
                raise LoadError("a tensor of its batch was changed in place since")
            if id(tensor) not in places:
                places[id(tensor)] = Place(len(leaves))
                leaves.append(tensor)
    model = _model_of(nodes, tape)
    dtypes = tuple(dict.fromkeys(d for node in nodes for d in node.autocast.values()))
    if tape.inner_autocast is not None:
        dtypes = dtypes or (tape.inner_autocast,)
    buffers = [saved for node in nodes for saved in node.buffers]
    return Workload(title, model, (tuple(leaves),), Replay(nodes, ref, places, dtypes)), dtypes, buffers


@contextmanager
def _autocast_as_asked(recorded: torch.dtype | None) -> Iterator[None]:
    """Inside, autocast that the script opened in ``recorded`` is in the dtype of the region around.

    In that one the loss is examined: another than its own, where that was asked for.
    """
    on = (torch.get_autocast_dtype(d) for d in AUTOCAST_DEVICES if torch.is_autocast_enabled(d))
    asked = next(on, None)
    if asked is None or asked == recorded:
        yield
        return
    original: Any = torch.set_autocast_dtype

    def set_autocast_dtype(device: str, dtype: torch.dtype) -> None:
        original(device, asked if dtype == recorded else dtype)

    with patch.object(torch, "set_autocast_dtype", set_autocast_dtype):
        yield


def _replay(
    node: Node, devices: list[str], results: dict[int, list[Tensor]], places: dict[int, Place], batch: Any
) -> list[Tensor]:
    replayed_line = node.line  # noqa: F841  read from this frame by watch.location
    args = _opened(node.args, results, places, batch)
    kwargs = _opened(node.kwargs, results, places, batch)
    with ExitStack() as stack:
        for device in devices:
            dtype = node.autocast.get(device)
            if dtype is not None or torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, dtype=dtype, enabled=dtype is not None))
        stack.enter_context(torch.set_grad_enabled(node.grad))
        set_states(node.random)
        out = node.call(*args, **kwargs)
    return list(tensors_in(args[0] if node.in_place else out))


def _opened(value: Any, results: dict[int, list[Tensor]], places: dict[int, Place], batch: Any) -> Any:
    """The sealed value with this run's tensors in the places of the recorded ones."""

    def open_(sealed: Ref | Leaf) -> Any:
        if isinstance(sealed, Ref):
            return results[id(sealed.node)][sealed.index]
        place = places.get(id(sealed.tensor))
        return sealed.tensor if place is None else batch[place.index]

    return mapped(value, (Ref, Leaf), open_)


def _sealed_in(value: Any) -> Iterator[Ref | Leaf]:
    """Both kinds, always: else those of the other one would be looked into, and a Ref leads to all before."""
    return found_in(value, (Ref, Leaf))


def leaves_in(value: Any) -> Iterator[Leaf]:
    """Every tensor from outside in a call's arguments."""
    return (sealed for sealed in _sealed_in(value) if isinstance(sealed, Leaf))


def _in_order(last: Node) -> list[Node]:
    """The calls that ``last`` needs, each after those that it needs itself."""
    order: list[Node] = []
    seen: set[int] = set()
    pending: list[tuple[Node, bool]] = [(last, False)]
    while pending:
        node, ready = pending.pop()
        if ready:
            order.append(node)
            continue
        if id(node) in seen:
            continue
        seen.add(id(node))
        pending.append((node, True))
        needed = [s.node for s in _sealed_in((node.args, node.kwargs)) if isinstance(s, Ref)]
        pending += [(n, False) for n in reversed(needed)]
    return order


def _model_of(nodes: list[Node], tape: Tape) -> nn.Module:
    """The only root itself; several under the script's names, with weights that belong to none of them."""
    roots = list(dict.fromkeys(node.call for node in nodes if isinstance(node.call, nn.Module)))
    roots = [r for r in roots if not any(r is not o and any(m is r for m in o.modules()) for o in roots)]
    given = {
        id(leaf.tensor): leaf.tensor
        for node in nodes
        for leaf in leaves_in((node.args, node.kwargs))
        if isinstance(leaf.tensor, nn.Parameter)
    }
    owned = {id(p) for root in roots for p in root.parameters()} if given else set()
    free = {key: parameter for key, parameter in given.items() if key not in owned}
    if len(roots) == 1 and not free:
        return roots[0]
    model = Roots()
    for number, root in enumerate(roots):
        name = tape.name(root).replace(".", "_")
        model.add_module(name if name not in model._modules else f"{name}_{number}", root)
    for number, parameter in enumerate(free.values()):
        model.register_parameter(f"parameter_{number}", parameter)
    return model

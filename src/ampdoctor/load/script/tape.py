"""The tape of a script: what led to a loss, as calls of root modules and of torch functions between them."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from ampdoctor.errors import LoadError
from ampdoctor.facts.words import AUTOCAST_DEVICES
from ampdoctor.load.script.buffers import BufferWatch, Saved
from ampdoctor.load.script.values import mapped, tensors_in
from ampdoctor.load.seeds import Drawn, generators_in_use, states
from ampdoctor.probe.watch.location import Line, _is_user_code, user_line

_WRAPPERS = {"DistributedDataParallel": "module", "DataParallel": "module", "OptimizedModule": "_orig_mod"}
_FRAMES = 24


@dataclass(eq=False)
class Node:
    """One recorded call."""

    call: Any
    """The function, or the root module."""
    args: Any
    kwargs: Any
    """With a Ref for what an earlier call made and a Leaf for any other tensor."""
    line: Line | None
    autocast: dict[str, torch.dtype]
    """Device type -> dtype, where autocast was on."""
    grad: bool
    in_place: bool
    generation: int
    random: Drawn = ()
    """The generators' states before a root's call."""
    differentiated: bool = False
    """Something it made could be differentiated when it returned."""
    buffers: list[Saved] = field(default_factory=list)
    """Of a root, before its call."""
    refused: LoadError | None = None
    """Why its arguments could not be kept."""


@dataclass(frozen=True)
class Ref:
    """What an earlier call made."""

    node: Node
    index: int
    """Among the tensors of its result."""


@dataclass(frozen=True, eq=False)
class Leaf:
    """A tensor from outside: the batch, a weight."""

    tensor: Tensor
    version: int
    foreign: bool
    """It has a history that was not recorded."""


class Tape:
    """Recorded calls. Nothing is held that the script itself lets go, but for the leaves of live results."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[weakref.ref[Tensor], Ref]] = {}
        self._names: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._buffers = BufferWatch()
        self.generation = 0
        self.inner_autocast: torch.dtype | None = None
        """Of an autocast that a root opened itself."""

    def forget_before(self, generation: int) -> None:
        """Nothing; results of earlier generations are leaves from now on, if anyone uses them."""
        self.generation = generation
        self._made = {
            key: (there, ref)
            for key, (there, ref) in self._made.items()
            if there() is not None and ref.node.generation >= generation - 1
        }

    # -- recording

    def function(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Nothing; the call is kept where it depends on weights or on an earlier call that was kept."""
        name = getattr(func, "__name__", "")
        in_place = name == "__setitem__"
        made = args[0] if in_place else out
        if next(tensors_in(made), None) is None or name == "__set__" or func == _GRADIENT:
            return
        inputs = list(tensors_in((args, kwargs)))
        if not any(self._follows(t) for t in inputs):
            return
        self._keep(Node(func, **self._sealed(args, kwargs), **self._state(), in_place=in_place), made)

    def root(self, module: nn.Module, args: Any, kwargs: Any, call: Callable[[], Any]) -> Any:
        """The outputs of ``call``, which runs the root module."""
        inner = module
        while (attribute := _WRAPPERS.get(type(inner).__name__)) and hasattr(inner, attribute):
            inner = getattr(inner, attribute)
        if inner not in self._names:
            self._names[inner] = _name_of(module)
        node = Node(inner, **self._sealed(args, kwargs), **self._state(), in_place=False)
        node.random = states(generators_in_use())
        node.buffers = self._buffers.before(inner)
        out = call()
        self._buffers.after()
        self._keep(node, out)
        return out

    def same(self, before: Any, after: Any) -> None:
        """Nothing; ``after`` is ``before`` times a loss scale, which is no part of the loss."""
        for old, new in zip(tensors_in(before), tensors_in(after), strict=False):
            ref = self.ref(old)
            if ref is not None:
                self._made[id(new)] = (weakref.ref(new), ref)

    # -- looking back

    def ref(self, tensor: Tensor) -> Ref | None:
        """The call that made the tensor; None for one that was not recorded.

        What an ``autograd.Function`` returns was made inside it without a history, which comes after.
        """
        there, ref = self._made.get(id(tensor), (None, None))
        if there is None or ref is None or there() is not tensor:
            return None
        return ref if ref.node.differentiated or tensor.grad_fn is None else None

    def name(self, module: nn.Module) -> str:
        """What the script calls the root: the variable that holds it."""
        return self._names.get(module) or type(module).__name__

    def _follows(self, tensor: Tensor) -> bool:
        return isinstance(tensor, nn.Parameter) or self._current(tensor) is not None or tensor.requires_grad

    def _current(self, tensor: Tensor) -> Ref | None:
        """The call to go back to; None where the value itself will do."""
        ref = self.ref(tensor)
        if ref is not None and ref.node.generation < self.generation and not tensor.requires_grad:
            return None  # else an average kept over all steps would keep all steps
        return ref

    def _sealed(self, args: Any, kwargs: Any) -> dict[str, Any]:
        """The arguments of a node; without them, and why, where they cannot be kept."""

        def seal(tensor: Tensor) -> Any:
            ref = self._current(tensor)
            if ref is not None:
                return ref
            foreign = tensor.grad_fn is not None
            version = 0 if tensor.is_inference() else tensor._version
            return Leaf(tensor.detach() if foreign else tensor, version, foreign)

        try:
            return {"args": mapped(args, Tensor, seal), "kwargs": mapped(kwargs, Tensor, seal)}
        except LoadError as error:
            return {"args": (), "kwargs": {}, "refused": error}

    def _state(self) -> dict[str, Any]:
        on = {d: torch.get_autocast_dtype(d) for d in AUTOCAST_DEVICES if torch.is_autocast_enabled(d)}
        return {
            "line": user_line(),
            "autocast": on,
            "grad": torch.is_grad_enabled(),
            "generation": self.generation,
        }

    def _keep(self, node: Node, made: Any) -> None:
        for index, tensor in enumerate(tensors_in(made)):
            node.differentiated |= tensor.grad_fn is not None
            if not isinstance(tensor, nn.Parameter):
                self._made[id(tensor)] = (weakref.ref(tensor), Ref(node, index))


_GRADIENT: Any = vars(torch._C.TensorBase)["grad"].__get__


def _name_of(module: nn.Module) -> str:
    """The outermost variable, or attribute of one, that holds the module; '' where none is found."""
    frame: FrameType | None = sys._getframe(2)
    frames: list[FrameType] = []
    while frame is not None and len(frames) < _FRAMES:
        if _is_user_code(frame):
            frames.append(frame)
        frame = frame.f_back
    for user_frame in reversed(frames):
        owner = user_frame.f_locals.get("self")
        held = {**getattr(owner, "__dict__", {}), **(getattr(owner, "_modules", None) or {})}
        for name, value in (*user_frame.f_locals.items(), *held.items()):
            if value is module and name != "self":
                return str(name)
    return ""

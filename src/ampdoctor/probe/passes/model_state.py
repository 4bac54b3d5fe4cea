"""What a model remembers outside its parameters and buffers: found, lent to a pass, and put back.

Attributes of modules and of plain objects, what their lists, dicts and sets hold, closures of hooks and
losses, tensors and arrays anywhere in these, and random generators of their own.
"""

from __future__ import annotations

import collections
import functools
import random
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

Restore = Callable[[], object]


@contextmanager
def state_kept(model: nn.Module, *others: Any) -> Iterator[list[Tensor]]:
    """Everything that is reached from the model and ``others``, as it was, on exit.

    Gives the tensors that were reached and are neither parameters nor buffers; inside they are copies, so
    that a pass writes to none of the user's.
    """
    own = {id(t) for t in (*model.parameters(), *model.buffers())}
    reached = _Reached(own)
    reached.walk([*model.modules(), *others])
    lent: list[tuple[Tensor, Tensor]] = []
    try:
        for tensor in reached.tensors:
            data = tensor.data
            copied = data.clone()
            lent.append((tensor, data))
            tensor.data = copied
        yield reached.tensors
    finally:
        for tensor, data in lent:
            tensor.data = data
        for restore in reached.restores:
            restore()


class _Reached:
    """The walk, and what it found to put back."""

    def __init__(self, own: set[int]) -> None:
        self.own = own
        self.tensors: list[Tensor] = []
        self.restores: list[Restore] = []
        self._seen: dict[int, Any] = {}
        """id -> the object, kept alive so that no other takes its id."""

    def walk(self, roots: list[Any]) -> None:
        pending = roots[::-1]
        while pending:
            value = pending.pop()
            if isinstance(value, _PLAIN) or id(value) in self._seen:
                continue
            self._seen[id(value)] = value
            pending += self._enter(value)

    def _enter(self, value: Any) -> list[Any]:
        """What ``value`` holds; how to put it back is noted."""
        if isinstance(value, Tensor):
            if id(value) not in self.own and _can_be_lent(value):
                self.tensors.append(value)
            return []
        if self._is_generator(value) or self._is_array(value):
            return []
        if isinstance(value, (tuple, frozenset)):
            return list(value)
        if isinstance(value, functools.partial):
            return [value.func, *value.args, *value.keywords.values()]
        if isinstance(value, types.MethodType):
            return [value.__self__, value.__func__]
        if isinstance(value, types.FunctionType):
            return self._closure(value)
        return [*self._contents(value), *self._attributes(value)]

    def _is_generator(self, value: Any) -> bool:
        numpy = sys.modules.get("numpy")
        if isinstance(value, torch.Generator):
            self.restores.append(functools.partial(value.set_state, value.get_state()))
        elif isinstance(value, random.Random):
            self.restores.append(functools.partial(value.setstate, value.getstate()))
        elif numpy is not None and isinstance(value, numpy.random.Generator):
            bits = value.bit_generator
            self.restores.append(functools.partial(setattr, bits, "state", bits.state))
        elif numpy is not None and isinstance(value, numpy.random.RandomState):
            self.restores.append(functools.partial(value.set_state, value.get_state()))
        else:
            return False
        return True

    def _is_array(self, value: Any) -> bool:
        numpy = sys.modules.get("numpy")
        if numpy is None or not isinstance(value, numpy.ndarray):
            return False
        if value.flags.writeable and not value.dtype.hasobject:
            self.restores.append(functools.partial(value.__setitem__, ..., value.copy()))
        return True

    def _closure(self, function: types.FunctionType) -> list[Any]:
        """What a function closes over, unless it is a library's."""
        if _root(function.__module__) in _LIBRARIES:
            return []
        held = []
        for cell in function.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:  # not filled yet
                continue
            held.append(content)
            self.restores.append(functools.partial(setattr, cell, "cell_contents", content))
        return held

    def _contents(self, value: Any) -> list[Any]:
        """The items of a list, dict, set or deque."""
        for kind, put_back in _CONTAINERS:
            if isinstance(value, kind):
                # The kind's own methods: a subclass may check or count what is added.
                before = dict(value.items()) if kind in _MAPPINGS else list(kind.__iter__(value))
                self.restores.append(functools.partial(put_back, kind, value, before))
                return list(before.values()) if isinstance(before, dict) else before
        return []

    def _attributes(self, value: Any) -> list[Any]:
        """The attributes of a module, or of an object of a class of the user's."""
        if isinstance(value, (type, types.ModuleType, torch.jit.ScriptModule)):
            return []  # A script's attributes live in it, where only its own code can change them.
        if not isinstance(value, nn.Module) and _root(type(value).__module__) in _LIBRARIES:
            return []
        held: list[Any] = []
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            before = dict(attributes)
            self.restores.append(functools.partial(_put_back_dict, dict, attributes, before))
            held += before.values()
        for cls in type(value).__mro__:
            for slot in cls.__dict__.values():
                if isinstance(slot, types.MemberDescriptorType):
                    held += self._slot(value, slot)
        return held

    def _slot(self, value: Any, slot: types.MemberDescriptorType) -> list[Any]:
        try:
            content = slot.__get__(value)
        except AttributeError:  # not set
            return []

        def put_back() -> None:
            # A slot of C's own may be read-only; then nothing can have changed it.
            if getattr(value, slot.__name__, None) is not content:
                slot.__set__(value, content)

        self.restores.append(put_back)
        return [content]


def _put_back_dict(kind: type, value: Any, before: dict[Any, Any]) -> None:
    now = list(kind.items(value))  # type: ignore[attr-defined]
    if len(now) == len(before) and all(
        key is key_before and item is item_before
        for (key, item), (key_before, item_before) in zip(now, before.items(), strict=True)
    ):
        return
    kind.clear(value)  # type: ignore[attr-defined]
    kind.update(value, before)  # type: ignore[attr-defined]


def _put_back_items(kind: type, value: Any, before: list[Any]) -> None:
    now = list(kind.__iter__(value))  # type: ignore[attr-defined]
    if len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True)):
        return
    kind.clear(value)  # type: ignore[attr-defined]
    (kind.update if kind is set else kind.extend)(value, before)  # type: ignore[attr-defined]


def _can_be_lent(tensor: Tensor) -> bool:
    return (
        type(tensor) in (Tensor, nn.Parameter, nn.Buffer)
        and tensor.layout == torch.strided
        and not tensor.is_inference()
        and not tensor.is_meta
    )


def _root(module: Any) -> str:
    return str(module or "").partition(".")[0]


_MAPPINGS = (collections.OrderedDict, dict)
_CONTAINERS: tuple[tuple[Any, Callable[[Any, Any, Any], None]], ...] = (
    *((kind, _put_back_dict) for kind in _MAPPINGS),
    *((kind, _put_back_items) for kind in (list, collections.deque, set)),
)
_LIBRARIES = (sys.stdlib_module_names - {"__main__", "collections", "types"}) | {"torch", "numpy"}
"""Whose objects hold nothing that a forward pass of the user's changes, but much that belongs to others."""
_PLAIN = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device)

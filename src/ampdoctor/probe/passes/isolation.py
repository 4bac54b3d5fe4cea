"""Leaves everything as it was: weights, buffers, gradients, attributes, modes, RNG and global flags."""

from __future__ import annotations

import collections
import collections.abc
import copy
import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ampdoctor.errors import ProbeError
from ampdoctor.probe.passes.process_flags import flags_kept


@contextmanager
def isolated(model: nn.Module, batch: Any) -> Iterator[None]:
    """Restores on exit all that a pass may touch of the model, the batch and the process.

    Once around every pass: the next one starts from the very same state.
    """
    with ExitStack() as stack:
        stack.enter_context(_rng_kept())
        stack.enter_context(flags_kept())
        stack.enter_context(_modules_kept(model))
        plain = _plain_tensors(model)
        stack.enter_context(_values_kept(plain))
        stack.enter_context(_leaves_kept([*model.parameters(), *plain, *_leaves(batch)]))
        yield


def refuse_without_values(model: nn.Module) -> None:
    """Nothing; raises ProbeError for a model some of whose weights or buffers are not there yet."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if nn.parameter.is_lazy(tensor):
            raise ProbeError(
                f"the model is not complete: {name}, of a lazy module, has no shape before its first call",
                "call the model once on a batch where it is built, then return it",
            )
        if tensor.is_meta:
            raise ProbeError(
                f"the model has no values: {name} is on the meta device",
                "build it outside torch.device('meta'), or load its weights before returning it",
            )


@contextmanager
def working_copy(
    model: nn.Module, device: torch.device, dtype: torch.dtype | None, widen: bool = False
) -> Iterator[None]:
    """The model with copies of its weights and buffers, on ``device``; floating ones in ``dtype``, if given.

    The tensors the user built are put back on exit, untouched by whatever ran. With ``widen``, only tensors
    narrower than ``dtype`` are cast (a float64 weight stays as it is).
    """
    originals: list[tuple[Tensor, Tensor]] = []
    try:
        for tensor in [*model.parameters(), *model.buffers()]:
            data = tensor.data
            cast = dtype is not None and data.is_floating_point() and not (widen and data.itemsize > 4)
            originals.append((tensor, data))
            tensor.data = data.to(device, dtype if cast else None, copy=True)
        yield
    finally:
        for tensor, data in originals:
            tensor.grad = None
            tensor.data = data


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Every generator a model may use, started from ``seed``."""
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
    yield


def batch_copy(batch: Any, device: torch.device) -> Any:
    """The batch with its own tensors, on ``device``; leaves keep ``requires_grad``, without a gradient.

    Raises ProbeError for a batch that holds something no one can copy.
    """
    memo: dict[int, Any] = {}
    for tensor in _leaves(batch):
        # deepcopy keeps a leaf's .grad and refuses a tensor with a history; a copy made here does neither.
        moved = tensor.detach().to(device, copy=True)
        memo[id(tensor)] = moved.requires_grad_(tensor.requires_grad)
    try:
        return copy.deepcopy(batch, memo)
    except Exception as error:
        raise ProbeError(
            f"the batch cannot be copied, and every pass needs a fresh one: {type(error).__name__}: {error}",
            "leave generators, locks, open files and the like out of what the data target returns",
        ) from error


def map_floating(batch: Any, convert: Any) -> Any:
    """The batch (a copy already) with ``convert`` applied to each dense floating-point tensor in it."""
    memo: dict[int, Any] = {
        id(t): convert(t).detach().requires_grad_(t.requires_grad)
        for t in _leaves(batch)
        if t.is_floating_point()
    }
    return copy.deepcopy(batch, memo)


def named_tensors(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor in a nested batch with its place: ``["x"]``, ``[0]``, ``.mask``."""
    yield from _named_tensors(value, name, {})


def _named_tensors(value: Any, name: str, entered: dict[int, Any]) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
        return
    if isinstance(value, (type, nn.Module)) or id(value) in entered:  # a batch may hold itself
        return
    entered[id(value)] = value
    if isinstance(value, collections.abc.Mapping):
        for key, item in value.items():
            yield from _named_tensors(item, f"{name}[{key!r}]", entered)
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _named_tensors(item, f"{name}[{i}]", entered)
    else:
        for key, item in _attributes(value):
            yield from _named_tensors(item, f"{name}.{key}", entered)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds, in its ``__dict__`` or its slots."""
    yield from getattr(value, "__dict__", {}).items()
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for key in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, key) and not key.startswith("__"):
                yield key, getattr(value, key)


def _leaves(batch: Any) -> list[Tensor]:
    return [tensor for _, tensor in named_tensors(batch)]


@contextmanager
def _rng_kept() -> Iterator[None]:
    python_state = random.getstate()
    numpy_random = sys.modules["numpy"].random if "numpy" in sys.modules else None
    numpy_state = numpy_random.get_state() if numpy_random is not None else None
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python_state)
        if numpy_random is not None:
            numpy_random.set_state(numpy_state)


@contextmanager
def _modules_kept(model: nn.Module) -> Iterator[None]:
    """Puts back each module's attributes, and what its lists, dicts and sets hold (one level deep)."""
    saved: list[tuple[nn.Module, dict[str, Any], list[tuple[Any, Any]]]] = []
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue  # its attributes live in the script, which only its own code can change
        contents = [(v, copy.copy(v)) for v in vars(module).values() if type(v) in _CONTAINERS]
        saved.append((module, dict(vars(module)), contents))
    try:
        yield
    finally:
        for module, attributes, contents in saved:
            vars(module).clear()
            vars(module).update(attributes)
            for container, before in contents:
                container.clear()
                (container.extend if isinstance(container, _SEQUENCES) else container.update)(before)


_SEQUENCES = (list, collections.deque)
_CONTAINERS = (*_SEQUENCES, dict, collections.OrderedDict, collections.defaultdict, set)


def _plain_tensors(model: nn.Module) -> list[Tensor]:
    """The tensors that are attributes of modules and neither parameters nor buffers."""
    tensors = {
        id(v): v
        for module in model.modules()
        for v in vars(module).values()
        if type(v) is Tensor and v.layout == torch.strided and not v.is_inference() and not v.is_meta
    }
    return list(tensors.values())


@contextmanager
def _values_kept(tensors: list[Tensor]) -> Iterator[None]:
    """Lets a pass write to copies."""
    originals = [(tensor, tensor.data) for tensor in tensors]
    try:
        for tensor, data in originals:
            tensor.data = data.clone()
        yield
    finally:
        for tensor, data in originals:
            tensor.data = data


@contextmanager
def _leaves_kept(tensors: list[Tensor]) -> Iterator[None]:
    """Puts back the gradients of leaves, the same tensors, and whether they require any."""
    leaves = [(t, t.grad, t.requires_grad) for t in tensors if t.is_leaf]
    for t, _, _ in leaves:
        t.grad = None
    try:
        yield
    finally:
        for t, gradient, requires in leaves:
            t.grad = None
            t.requires_grad_(requires)
            t.grad = gradient

"""Leaves everything as it was: weights, buffers, gradients, attributes, modes, RNG and global flags."""

from __future__ import annotations

import collections.abc
import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ampdoctor.errors import ProbeError, is_out_of_memory
from ampdoctor.load.seeds import preserved_rng
from ampdoctor.probe.passes.device import flags_kept
from ampdoctor.probe.passes.model_state import state_kept

_kept_open: list[Callable[[], None]] = []


@contextmanager
def kept_open(close: Callable[[], None]) -> Iterator[None]:
    """While open, ``close`` is called where another pass begins: it starts from the model as its user left
    it."""
    _kept_open.append(close)
    try:
        yield
    finally:
        _kept_open.remove(close)


@contextmanager
def isolated(model: nn.Module, batch: Any, step: Any) -> Iterator[None]:
    """Restores on exit all that a pass may touch of the model, the batch, the loss and the process.

    Once around every pass: the next one starts from the very same state. One that is kept open is closed.
    """
    for close in tuple(_kept_open):
        close()
    with ExitStack() as stack:
        stack.enter_context(preserved_rng())
        stack.enter_context(flags_kept())
        plain = stack.enter_context(state_kept(model, step))
        stack.enter_context(_leaves_kept([*model.parameters(), *plain, *_leaves(batch)]))
        yield


def refuse_without_values(model: nn.Module) -> None:
    """Nothing; raises ProbeError where nothing can be measured.

    That is under a mode whose new tensors hold no values (``FakeTensorMode``, ``torch.device("meta")``), and
    for a model some of whose weights or buffers are not there yet, or can have no gradient.
    """
    made = torch.empty(0)
    if made.is_meta or type(made) is not Tensor:
        raise ProbeError(
            "tensors that are made here hold no values: torch.device('meta') or FakeTensorMode is in force",
            "scan outside of it, with a model that was built outside of it",
        )
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
        if tensor.is_inference():
            raise ProbeError(
                f"the model was built under torch.inference_mode: {name} can have no gradient",
                "build it outside torch.inference_mode()",
            )


@contextmanager
def working_copy(
    model: nn.Module, device: torch.device, dtype_of: Callable[[Tensor], torch.dtype]
) -> Iterator[None]:
    """The model with copies of its weights and buffers, on ``device``; floating ones in their ``dtype_of``.

    A model that its own code has split over several devices of that type stays where it is. The tensors the
    user built are put back on exit, untouched by whatever ran.
    """
    originals: list[tuple[Tensor, Tensor]] = []
    tensors = [*model.parameters(), *model.buffers()]
    is_split = len({t.device for t in tensors if t.device.type == device.type}) > 1
    try:
        for tensor in tensors:
            data = tensor.data
            dtype = dtype_of(tensor) if data.is_floating_point() else data.dtype
            originals.append((tensor, data))
            tensor.data = data.to(data.device if is_split else device, dtype, copy=True)
        yield
    finally:
        for tensor, data in originals:
            tensor.grad = None
            tensor.data = data


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
        if is_out_of_memory(error):
            raise
        raise ProbeError(
            f"the batch cannot be copied, and every pass needs a fresh one: {type(error).__name__}: {error}",
            "leave generators, locks, open files and the like out of what the data target returns",
        ) from error


def dense_gradients(model: nn.Module) -> dict[str, Tensor]:
    """{parameter: its gradient as it lies there, detached}; a sparse one made dense."""
    return {
        name: p.grad.detach().to_dense() if p.grad.layout != torch.strided else p.grad.detach()
        for name, p in model.named_parameters()
        if p.grad is not None
    }


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

"""Leaves everything as it was: weights, buffers, gradients, attributes, modes, RNG and global flags."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def isolated(model: nn.Module, batches: tuple[Any, ...]) -> Iterator[None]:
    """Restores on exit all that a pass may touch of the model, the batches and the process."""
    with ExitStack() as stack:
        stack.enter_context(_rng_kept())
        stack.enter_context(_flags_kept())
        stack.enter_context(_modules_kept(model))
        stack.enter_context(_gradients_kept([*model.parameters(), *_leaves(batches)]))
        yield


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
    """The batch with its own tensors, on ``device``; leaves keep ``requires_grad``, without a gradient."""
    memo: dict[int, Any] = {}
    for tensor in _leaves(batch):
        # deepcopy keeps a leaf's .grad and refuses a tensor with a history; a copy made here does neither.
        moved = tensor.detach().to(device, copy=True)
        memo[id(tensor)] = moved.requires_grad_(tensor.requires_grad)
    return copy.deepcopy(batch, memo)


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
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, dict) or hasattr(value, "items"):
        for key, item in value.items():
            yield from named_tensors(item, f"{name}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from named_tensors(item, f"{name}[{i}]")
    elif hasattr(value, "__dict__") and not isinstance(value, (type, nn.Module)):
        for key, item in vars(value).items():
            yield from named_tensors(item, f"{name}.{key}")


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
def _flags_kept() -> Iterator[None]:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    precision = torch.get_float32_matmul_precision()
    flags = (matmul.allow_tf32, cudnn.allow_tf32, torch.get_default_dtype(), torch.is_grad_enabled())
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        matmul.allow_tf32, cudnn.allow_tf32 = flags[0], flags[1]
        torch.set_default_dtype(flags[2])
        torch.set_grad_enabled(flags[3])


@contextmanager
def tf32_off() -> Iterator[None]:
    """FP32 products in FP32, not in the 10-bit mantissa of TF32."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = (matmul.allow_tf32, cudnn.allow_tf32)
    matmul.allow_tf32 = cudnn.allow_tf32 = False
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


@contextmanager
def _modules_kept(model: nn.Module) -> Iterator[None]:
    """Puts back each module's attributes, and its registries' entries (one level: not inside a list)."""
    saved: list[tuple[nn.Module, dict[str, Any], dict[str, dict[str, Any]]]] = []
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue  # its attributes live in the script, which only its own code can change
        registries = {
            k: dict(v) for k, v in vars(module).items() if k.startswith("_") and isinstance(v, dict)
        }
        saved.append((module, dict(vars(module)), registries))
    try:
        yield
    finally:
        for module, attributes, registries in saved:
            vars(module).clear()
            vars(module).update(attributes)
            for name, entries in registries.items():
                registry = attributes[name]
                registry.clear()
                registry.update(entries)


@contextmanager
def _gradients_kept(tensors: list[Tensor]) -> Iterator[None]:
    leaves = [t for t in tensors if t.is_leaf]
    gradients = [t.grad for t in leaves]
    for t in leaves:
        t.grad = None
    try:
        yield
    finally:
        for t, gradient in zip(leaves, gradients, strict=True):
            t.grad = None
            t.grad = gradient

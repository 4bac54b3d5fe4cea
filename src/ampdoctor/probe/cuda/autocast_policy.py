"""Makes autocast on the CPU follow CUDA's op lists, for as long as a context is open."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from ampdoctor.probe.cuda.autocast_calls import cuda_calls_mean_cpu
from ampdoctor.probe.cuda.autocast_lists import DTYPE_OVERLOADS, Policy
from ampdoctor.probe.cuda.decomposed_rnns import decomposed_rnns
from ampdoctor.probe.cuda.device_tensors import named_devices_count
from ampdoctor.probe.cuda.dispatcher_kernels import aten_overload, kernels_installed
from ampdoctor.probe.cuda.dispatcher_policy import installed_policies
from ampdoctor.probe.cuda.fused_dropout import fused_dropout
from ampdoctor.probe.cuda.half_ffts import half_ffts
from ampdoctor.probe.cuda.half_to_float import ONE_OP, is_one_op
from ampdoctor.probe.cuda.refusal import EmulatedRefusal

_KEY = "AutocastCPU"
_Kernel = Callable[..., Any]


@contextmanager
def cuda_autocast_policy() -> Iterator[None]:
    """While open, the CPU's autocast treats every op as CUDA's does, and CUDA's in user code means the CPU's.

    Everything is as before afterwards. May be nested: the inner one changes nothing. The kernels are the
    process's; whether autocast is on is the thread's affair, as everywhere in PyTorch.
    """
    if _open:
        yield
        return
    cache_keeps_graph()  # asked of PyTorch's own kernels
    with ExitStack() as undo:
        undo.callback(_close)
        _open.append(True)
        undo.enter_context(decomposed_rnns())
        undo.enter_context(half_ffts())
        undo.enter_context(fused_dropout())
        undo.enter_context(kernels_installed(_kernels()))
        undo.enter_context(cuda_calls_mean_cpu(on_cache_cleared=_casts.clear))
        undo.enter_context(named_devices_count())
        yield


_open: list[bool] = []
_casts: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}
"""Autocast's cache of weights in the lower dtype, for the ops whose kernel is ours."""


def _close() -> None:
    _open.clear()
    _casts.clear()


@functools.cache
def _kernels() -> tuple[tuple[str, str, _Kernel], ...]:
    """A kernel for each op where the CPU's policy differs from CUDA's; elsewhere the CPU's own stays."""
    cpu = {
        name.removeprefix("aten::")
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::") and torch._C._dispatch_has_kernel_for_dispatch_key(name, _KEY)
    }
    kernels: list[tuple[str, str, _Kernel]] = []
    policies = installed_policies()
    for name, policy in policies.items():
        op = aten_overload(name)
        # The CPU lowers every op of its own list that CUDA lowers: in C++, and with a cache of weights.
        if op is not None and not (policy is Policy.LOWER and name in cpu):
            kernels.append((name, _KEY, _kernel(name, op, policy)))
    for name in sorted(cpu - policies.keys()):
        # Not merely left uncast: autocast stays on for the ops inside (the log_softmax of cross_entropy).
        kernels.append((name, _KEY, torch.library.fallthrough_kernel))
    return tuple(kernels)


def _kernel(name: str, op: OpOverload, policy: Policy) -> _Kernel:
    """What runs in the place of ``op`` while autocast is on."""
    make: dict[Policy, Callable[[str, OpOverload], _Kernel]] = {
        Policy.LOWER: _lower,
        Policy.RECURRENT: _lower,
        Policy.FLOAT32: _float32,
        Policy.FLOAT32_RESULT: _float32_result,
        Policy.FLOAT32_OVERLOAD: _float32_overload,
        Policy.WIDEST: _widest,
        Policy.REFUSED: _refused,
    }
    inner = make[policy](name, op)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
            return inner(*args, **kwargs)

    return kernel


def _lower(name: str, op: OpOverload) -> _Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype("cpu")
        return op(*_cast(args, dtype), **{k: _cast(v, dtype) for k, v in kwargs.items()})

    return kernel


def _float32(name: str, op: OpOverload) -> _Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        dtype = torch.float32
        return op(*_cast(args, dtype), **{k: _cast(v, dtype) for k, v in kwargs.items()})

    return kernel


def _float32_result(name: str, op: OpOverload) -> _Kernel:
    arguments = [a.name for a in op._schema.arguments]
    position = arguments.index("dtype")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if not _is_eligible(args[0]):
            return op(*args, **kwargs)
        if position < len(args):
            if args[position] is None:
                args = (*args[:position], torch.float32, *args[position + 1 :])
        elif kwargs.get("dtype") is None:
            kwargs = {**kwargs, "dtype": torch.float32}
        if is_one_op(name, args[0], args[position] if position < len(args) else kwargs["dtype"]):
            return ONE_OP[name](args[0], args[1], True)
        return op(*args, **kwargs)

    return kernel


def _float32_overload(name: str, op: OpOverload) -> _Kernel:
    with_dtype = aten_overload(DTYPE_OVERLOADS[name])
    assert with_dtype is not None
    defaults = [a.default_value for a in op._schema.arguments]

    def kernel(*args: Any) -> Any:
        filled = (*args, *defaults[len(args) :])
        dtype = torch.float32 if _is_eligible(args[0]) else args[0].dtype
        return with_dtype(*filled, dtype=dtype)

    return kernel


def _widest(name: str, op: OpOverload) -> _Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        dtype = _widest_dtype((*args, *kwargs.values()), torch.get_autocast_dtype("cpu"))
        return op(*_cast(args, dtype), **{k: _cast(v, dtype) for k, v in kwargs.items()})

    return kernel


def _refused(name: str, op: OpOverload) -> _Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        raise EmulatedRefusal(
            f"CUDA autocast refuses {name}: probabilities computed in half precision are unsafe for it. "
            "Leave out the sigmoid and use binary_cross_entropy_with_logits (BCEWithLogitsLoss), "
            "or compute this loss in float32 with autocast off."
        )

    return kernel


def _is_eligible(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and (value.is_cpu or value.is_mkldnn)
        and value.is_floating_point()
        and value.dtype is not torch.float64
    )


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """The value with its eligible tensors in ``dtype``, through autocast's weight cache."""
    if isinstance(value, Tensor):
        if value.dtype is dtype or not _is_eligible(value):
            return value
        return _cached_cast(value, dtype)
    if isinstance(value, (list, tuple)):
        return type(value)(_cast(v, dtype) for v in value)
    return value


def _cached_cast(value: Tensor, dtype: torch.dtype) -> Tensor:
    """As ``cached_cast`` in ATen/autocast_mode.cpp: a float32 leaf is cast once per autocast context.

    So its uses share one lower-precision tensor, and their gradients are added up in that precision.
    """
    if not (
        value.dtype is torch.float32
        and value.requires_grad
        and value.is_leaf
        and not value._is_view()
        and dtype is torch.get_autocast_dtype("cpu")
        and torch.is_autocast_cache_enabled()
    ):
        return value.to(dtype)
    known = _casts.get(id(value))
    if known is not None and known[0]() is value:
        return known[1]  # in whatever dtype it was cast to: PyTorch's cache does not ask either
    if cache_keeps_graph():
        if torch.is_inference_mode_enabled():
            return value.to(dtype)
        with torch.enable_grad():
            cast = value.to(dtype)
    else:
        cast = value.to(dtype)
    _casts[id(value)] = (weakref.ref(value), cast)
    return cast


@functools.cache
def cache_keeps_graph() -> bool:
    """Whether a weight that autocast casts first under ``no_grad`` still gets a gradient from later uses.

    The installed torch is asked: up to 2.6, at least, the cast without a graph was served to all of them.
    """
    x = torch.zeros(1, 1, dtype=torch.float32)
    weight = x.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.no_grad():
            torch.nn.functional.linear(x, weight)
        with torch.enable_grad():
            return torch.nn.functional.linear(x, weight).requires_grad


def _widest_dtype(values: Sequence[Any], lower: torch.dtype) -> torch.dtype:
    """As ``prioritize`` in ATen/autocast_mode.h: float32 wins, and a third dtype is an error."""
    widest = lower
    for value in values:
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if not _is_eligible(tensor):
                continue
            if widest is torch.float32 or tensor.dtype is torch.float32:
                widest = torch.float32
            elif tensor.dtype is not lower:
                raise EmulatedRefusal(
                    f"CUDA autocast refuses {tensor.dtype} next to its own {lower} in an op "
                    "that runs in the widest dtype of its inputs"
                )
    return widest

"""What the installed torch does to an op under CUDA's autocast: asked of its dispatcher, not of a list.

CUDA's autocast kernels are registered in a CPU build as well. An op is called on made-up arguments that have
no memory (``FakeTensorMode``), and the casts that come out below autocast tell its policy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from ampdoctor.probe.cuda.autocast_lists import CUDA_ONLY_KERNELS, CUDA_POLICIES, Policy
from ampdoctor.probe.cuda.dispatcher_kernels import aten_overload

_HALF, _SINGLE = torch.float16, torch.float32
_SIZE = 4
"""Rows and columns of the made-up matrices: square, for ops of linear algebra."""
_VALUES: dict[str, Callable[[], Any]] = {
    "int": lambda: 1,
    "SymInt": lambda: 1,
    "int[]": lambda: [1, 1],
    "SymInt[]": lambda: [1, 1],
    "List[int]": lambda: [1, 1],
    "float": lambda: 1.0,
    "number": lambda: 1.0,
    "bool": lambda: False,
}
"""An argument of each type, where the op has no default for it."""


def covered_by_cuda_autocast() -> set[str]:
    """Names (``sum.dim_IntList``) of the ops that CUDA's autocast has a kernel for in the installed torch."""
    return {
        name.removeprefix("aten::")
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::") and torch._C._dispatch_has_kernel_for_dispatch_key(name, "AutocastCUDA")
    }


@functools.cache
def installed_policies() -> Mapping[str, Policy]:
    """{op overload: policy} of the installed torch: what we list and its dispatcher covers; and what it
    covers beyond that, with the policy it shows (an op of which it shows none passes as it is)."""
    covered = covered_by_cuda_autocast()
    listed = {n: p for n, p in CUDA_POLICIES.items() if n in covered or p is Policy.RECURRENT}
    return {**listed, **{name: policy for name, policy in unlisted_policies().items() if policy is not None}}


def unlisted_policies() -> dict[str, Policy | None]:
    """The ops that the installed torch covers and our list does not, each with what its dispatcher shows."""
    found: dict[str, Policy | None] = {}
    for name in sorted(covered_by_cuda_autocast() - CUDA_POLICIES.keys() - CUDA_ONLY_KERNELS.keys()):
        op = aten_overload(name)
        # Named tensors, which older versions of torch had; no Python kernel can take a name.
        if op is not None and "imname" not in name and ".names_" not in name:
            found[name] = dispatcher_policy(op)
    return found


def dispatcher_policy(op: OpOverload) -> Policy | None:
    """The policy of an op under CUDA's autocast; None where it does nothing, or cannot be asked."""
    from_single = _dtypes_below_autocast(op, (_SINGLE, _SINGLE))
    from_half = _dtypes_below_autocast(op, (_HALF, _HALF))
    if from_single is None or from_half is None:
        return None
    if from_single.refused:
        return Policy.REFUSED
    if _HALF in from_single.casts:
        return Policy.LOWER
    if _SINGLE in from_half.casts:
        return Policy.FLOAT32
    if from_half.asks_for_float32:
        return Policy.FLOAT32_RESULT
    mixed = _dtypes_below_autocast(op, (_SINGLE, _HALF))
    return Policy.WIDEST if mixed is not None and _SINGLE in mixed.casts else None


class _Below(TorchDispatchMode):
    """Sees what autocast hands on."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.casts: list[torch.dtype] = []
        self.asks_for_float32 = False
        self.refused = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default:
            self.casts.append(kwargs["dtype"])
        elif func.namespace == "aten":
            self.asks_for_float32 = kwargs.get("dtype") is _SINGLE
            raise _Reached
        return func(*args, **kwargs)


class _Reached(Exception):
    """Autocast has handed the op on."""


def _dtypes_below_autocast(op: OpOverload, dtypes: tuple[torch.dtype, torch.dtype]) -> _Below | None:
    """What is seen below autocast where the first tensor has the first dtype and all others the second."""
    below = _Below()
    with FakeTensorMode():
        arguments = _made_up(op, dtypes)
        if arguments is None:
            return None
        with _cuda_autocast_on(), below:
            try:
                op(*arguments)
            except _Reached:
                return below
            except Exception as error:  # made-up arguments need not suit the op: what came before it counts
                below.refused = "unsafe to autocast" in str(error)
    return below


def _made_up(op: OpOverload, dtypes: tuple[torch.dtype, torch.dtype]) -> list[Any] | None:
    remaining = [dtypes[0]]

    def tensor() -> Tensor:
        dtype = remaining.pop() if remaining else dtypes[1]
        return torch.empty(_SIZE, _SIZE, dtype=dtype, device="cuda")

    arguments: list[Any] = []
    for argument in op._schema.arguments:
        kind = str(argument.type)
        if argument.kwarg_only or argument.has_default_value():
            break
        if kind == "Tensor":
            arguments.append(tensor())
        elif kind == "List[Tensor]":
            arguments.append([tensor(), tensor()])
        elif kind.startswith("Optional["):
            arguments.append(None)
        elif kind in _VALUES:
            arguments.append(_VALUES[kind]())
        else:
            return None
    return arguments


@contextmanager
def _cuda_autocast_on() -> Iterator[None]:
    """Autocast for CUDA tensors to float16, also where torch knows no CUDA device."""
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_dtype("cuda", _HALF)
    torch.set_autocast_enabled("cuda", True)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])

"""Gives a process CUDA devices of host memory: imported before torch, with HOST_CUDA naming a library."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from typing import Any

assert "torch" not in sys.modules, "torch asks for its CUDA hooks when it is imported"
_library = ctypes.CDLL(os.environ["HOST_CUDA"], mode=ctypes.RTLD_GLOBAL)
_library.run_out_at.argtypes, _library.run_out_at.restype = [ctypes.c_long], ctypes.c_long

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

_kernels: list[Any] = []
_started: list[bool] = []


def install(devices: int = 1) -> None:
    """Makes ``cuda:0`` to ``cuda:devices - 1`` exist in this process, for good."""
    _library.install_devices(devices)
    for name, answer in (
        ("is_available", True),
        ("device_count", devices),
        ("current_device", 0),
        ("get_device_name", "host memory"),
        ("is_bf16_supported", True),
        ("synchronize", None),
    ):
        setattr(torch.cuda, name, _always(answer))
    torch.cuda.random.device_count = torch.cuda.device_count
    torch.cuda.random.current_device = torch.cuda.current_device
    torch.cuda.is_initialized = lambda: bool(_started)
    torch.cuda._lazy_init = _start
    torch.cuda.default_generators = tuple(torch.Generator(f"cuda:{i}") for i in range(devices))
    import torch.cuda.amp.common as common

    common.amp_definitely_not_available = _always(False)
    aten = torch.ops.aten
    library = torch.library.Library("aten", "IMPL")
    for name in ("_softmax", "_log_softmax"):
        library.impl(name, _softmax(getattr(aten, name).default), "CUDA")
        backward = f"{name}_backward_data"
        library.impl(backward, _softmax_backward(getattr(aten, backward).default), "CUDA")
    library.impl("scaled_dot_product_attention", _chosen_attention, "AutogradCUDA")
    for name, kernel in _ATTENTION_KERNELS.items():
        library.impl(f"_scaled_dot_product_{name}", kernel, "CUDA")
    _kernels.append(library)
    Tensor.__deepcopy__ = _deepcopy(Tensor.__deepcopy__)


def run_out_at(op: int) -> int:
    """Memory runs out at the op of this number, counted from now, once; 0: never. How many ran before."""
    return int(_library.run_out_at(op or -1))


def _start() -> None:
    """As CUDA does when it is first used: its generators take the seeds that were set before then."""
    if not _started:
        _started.append(True)
        for seeding, _ in filter(None, torch.cuda._lazy_seed_tracker.get_calls()):
            seeding()


def _always(answer: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: answer


ATTENTION: dict[torch.dtype, int] = {}
"""By dtype of the query the kernel that CUDA would take (sdp::SDPBackend): 0, else, is the formula."""
FLASH, EFFICIENT = 1, 2


def _chosen_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Any = None, p: float = 0.0, causal: bool = False, **more: Any
) -> Tensor:
    """As ATen/native/transformers/attention.cpp does, whose choice asks CUDA."""
    aten, chosen = torch.ops.aten, 0 if mask is not None or p else ATTENTION.get(q.dtype, 0)
    if chosen == FLASH:
        given = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, scale=more.get("scale"))
    elif chosen == EFFICIENT:
        given = aten._scaled_dot_product_efficient_attention(
            q, k, v, None, True, 0.0, causal, scale=more.get("scale")
        )
    else:
        given = aten._scaled_dot_product_attention_math(q, k, v, mask, p, causal, None, **more)
    out: Tensor = given[0]
    return out


# What is C++ in torch is no line of the user's.
_chosen_attention.__code__ = _chosen_attention.__code__.replace(co_filename="<scaled_dot_product_attention>")


def _attention(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float | None) -> list[Tensor]:
    op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    host = op(query.cpu(), key.cpu(), value.cpu(), 0.0, causal, scale=scale)
    return [t.to(query.device) for t in host]


def _attention_backward(*tensors: Tensor, causal: bool, scale: float | None) -> list[Tensor]:
    op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    return [t.to(tensors[0].device) for t in op(*(t.cpu() for t in tensors), 0.0, causal, scale=scale)]


def _flash(
    q: Tensor, k: Tensor, v: Tensor, p: Any = 0, causal: Any = False, *_: Any, scale: Any = None
) -> Any:
    out, sums = _attention(q, k, v, causal, scale)
    none = torch.empty(0, dtype=torch.int64)
    return out, sums, none, none, q.shape[2], k.shape[2], none, none, out.new_empty(0)


def _flash_backward(*args: Any, scale: Any = None) -> Any:
    return _attention_backward(*args[:6], causal=args[11], scale=scale)


def _efficient(
    q: Tensor, k: Tensor, v: Tensor, bias: Any, sums: Any, p: Any = 0, causal: Any = False, scale: Any = None
) -> Any:
    out, sums = _attention(q, k, v, causal, scale)
    padded = torch.nn.functional.pad(sums, (0, -sums.shape[2] % 32), value=float("inf"))
    none = torch.empty((), dtype=torch.int64)
    return out, padded, none, none


def _efficient_backward(*args: Any, scale: Any = None) -> Any:
    gradient, q, k, v, _, out, sums = args[:7]
    sums = sums[:, :, : q.shape[2]].contiguous()
    given = _attention_backward(gradient, q, k, v, out, sums, causal=args[11:12] == (True,), scale=scale)
    return (*given, q.new_empty(0))


_ATTENTION_KERNELS = {
    "flash_attention": _flash,
    "flash_attention_backward": _flash_backward,
    "efficient_attention": _efficient,
    "efficient_attention_backward": _efficient_backward,
}


def _softmax(op: Any) -> Callable[..., Tensor]:
    """CUDA's takes half and gives float32; the CPU's does not."""

    def kernel(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
        host = x.cpu().float() if half_to_float else x.cpu()
        return op(host, dim, False).to(x.device)

    return kernel


def _softmax_backward(op: Any) -> Callable[..., Tensor]:
    def kernel(gradient: Tensor, output: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
        return op(gradient.cpu(), output.cpu(), dim, gradient.dtype).to(dtype).to(gradient.device)

    return kernel


def _deepcopy(original: Any) -> Any:
    """A copy of a storage asks CUDA itself for memory."""

    def deepcopy(self: Tensor, memo: dict[int, Any]) -> Any:
        if type(self) is not Tensor or not self.is_cuda:
            return original(self, memo)
        if id(self) not in memo:
            memo[id(self)] = self.detach().clone().requires_grad_(self.requires_grad)
        return memo[id(self)]

    return deepcopy

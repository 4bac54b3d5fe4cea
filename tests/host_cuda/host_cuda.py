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
        ("get_device_name", "host memory"),
        ("is_bf16_supported", True),
    ):
        setattr(torch.cuda, name, _always(answer))
    torch.cuda.random.device_count = torch.cuda.device_count
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
    library.impl("_fused_sdp_choice", _always(0), "CUDA")  # attention as its formula
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

"""Runs ``nn.LSTM``, ``nn.GRU`` and ``nn.RNN`` on a CPU as the ops they are made of, not as one oneDNN kernel.

oneDNN's kernel hides every gate from view, and refuses float32 input under float16 autocast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._ops import OpOverload

from ampdoctor.probe.cuda.dispatcher_kernels import aten_overload, kernels_installed

_RNN_OPS = tuple(f"{layer}.{form}" for layer in ("lstm", "gru", "rnn_tanh", "rnn_relu")
                 for form in ("input", "data"))  # fmt: skip
"""``input``: a padded batch; ``data``: a packed sequence."""
_open: list[bool] = []


@contextmanager
def decomposed_rnns() -> Iterator[None]:
    """While open, recurrent layers on the CPU run op by op, forward and backward. May be nested."""
    if _open:
        yield
        return
    kernels = [
        (name, key, _without_onednn(op))
        for name in _RNN_OPS
        if (op := aten_overload(name)) is not None
        for key in ("AutogradCPU", "CPU")
    ]
    _open.append(True)
    try:
        with kernels_installed(kernels):
            yield
    finally:
        _open.clear()


def _without_onednn(op: OpOverload) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        enabled = torch._C._get_mkldnn_enabled()
        torch._C._set_mkldnn_enabled(False)
        try:
            # Not op.decompose(): with torch._decomp imported that is a Python version that asks for oneDNN.
            return op._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
        finally:
            torch._C._set_mkldnn_enabled(enabled)

    return kernel

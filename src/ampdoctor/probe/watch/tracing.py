"""Whether ops that run now compute anything."""

from __future__ import annotations

import torch

_KEYS = torch._C._TorchDispatchModeKey
_TRACING = (_KEYS.FAKE, _KEYS.PROXY, _KEYS.FUNCTIONAL)


def is_tracing() -> bool:
    """torch only asks for shapes or writes down a graph: for a DTensor's sharding, the body of a loop.

    Those modes come after any other, so a dispatch mode sees such an op first; it has no values and makes
    none.
    """
    return torch._C._len_torch_dispatch_stack() > 0 and any(
        torch._C._get_dispatch_mode(key) is not None for key in _TRACING
    )

"""Fused attention, which is one op whichever of its kernels runs.

Reference and candidate may get different ones (flash has no FP32), and a CPU another than CUDA: their sites
go by one name, so that they pair.
"""

from __future__ import annotations

_NAME = "aten::scaled_dot_product_attention"
_KERNELS = tuple(
    f"aten::_scaled_dot_product_{kernel}"
    for kernel in (
        "flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention",
        "fused_attention_overrideable",
    )
)  # fmt: skip
NAMES = {
    **dict.fromkeys(_KERNELS, _NAME),
    **dict.fromkeys([f"{kernel}_backward" for kernel in _KERNELS], f"{_NAME}_backward"),
}
"""Kernel -> the op it is one of."""
INTERNAL = dict.fromkeys(_KERNELS, (1, 8))
"""Kernel -> outputs that only its backward reads: log-sum-exp, which says +inf for a row that sees nothing,
and is padded with it in the memory-efficient kernel; and flash's mask for debugging."""

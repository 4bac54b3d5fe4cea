"""Many ops in half precision on a CPU, against float64 and against the CPU's own kernels; and the tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ampdoctor.probe.cuda.on_cpu import run_like_cuda
from ampdoctor.probe.cuda.op_kinds import _CPU_ONLY, _MIXED, _MOVES, _NEITHER, Arithmetic, classify

aten = torch.ops.aten
HALF, BRAIN = torch.float16, torch.bfloat16
LOW = (HALF, BRAIN)


class CheckedLikeCuda(TorchDispatchMode):
    """Runs every op through run_like_cuda, and checks what it says of the values before rounding."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = run_like_cuda(func, args, kwargs or {})
        tensors = [t for t in tree_leaves(result.outputs) if isinstance(t, Tensor)]
        if func._schema.returns:
            assert len(result.unrounded) == len(tensors)
        for rounded, exact in zip(tensors, result.unrounded, strict=False):
            if exact is not None:
                assert rounded.dtype in LOW
                assert torch.equal(exact.to(rounded.dtype), rounded) or exact.isnan().any()
        return result.outputs


# --- many ops against float64 and against the CPU's own kernels -------------------------------------------


def image(n: int = 6) -> Tensor:
    return torch.linspace(-2, 2, 2 * 4 * n * n).view(2, 4, n, n)


def table() -> Tensor:
    return torch.linspace(-3, 3, 24).view(4, 6)


OPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda x, y: x + table().to(x.dtype),
    "add, broadcast": lambda x, y: x[:, :1] + x,
    "sub with alpha": lambda x, y: torch.sub(x, x.flip(0), alpha=0.5),
    "mul": lambda x, y: x * x,
    "mul, strided": lambda x, y: x[:, ::2] * x[:, 1::2],
    "mul, transposed": lambda x, y: x.t() * x.t(),
    "div": lambda x, y: x / 3,
    "pow": lambda x, y: x**3,
    "exp": lambda x, y: x.exp(),
    "log": lambda x, y: x.abs().log(),
    "sqrt": lambda x, y: x.abs().sqrt(),
    "rsqrt": lambda x, y: x.abs().rsqrt(),
    "sigmoid": lambda x, y: x.sigmoid(),
    "tanh": lambda x, y: x.tanh(),
    "gelu": lambda x, y: F.gelu(x),
    "silu": lambda x, y: F.silu(x),
    "softplus": lambda x, y: F.softplus(x),
    "elu": lambda x, y: F.elu(x),
    "leaky_relu": lambda x, y: F.leaky_relu(x),
    "clamp": lambda x, y: x.clamp(-1, 1),
    "lerp": lambda x, y: torch.lerp(x, x.flip(0), 0.25),
    "addcmul": lambda x, y: torch.addcmul(x, x, x, value=0.5),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, x.abs() + 1),
    "atan2": lambda x, y: torch.atan2(x, x.flip(1)),
    "sum": lambda x, y: x.sum(),
    "sum over a dimension": lambda x, y: x.sum(1, keepdim=True),
    "mean": lambda x, y: x.mean(0),
    "var": lambda x, y: x.var(1),
    "std": lambda x, y: x.std(),
    "prod": lambda x, y: x.prod(1),
    "cumsum": lambda x, y: x.cumsum(1),
    "logsumexp": lambda x, y: x.logsumexp(1),
    "norm": lambda x, y: x.norm(dim=1),
    "softmax": lambda x, y: x.softmax(-1),
    "log_softmax": lambda x, y: x.log_softmax(0),
    "layer_norm": lambda x, y: F.layer_norm(x, (6,), x[0], x[1]),
    "group_norm": lambda x, y: F.group_norm(y, 2),
    "batch_norm": lambda x, y: F.batch_norm(y, None, None, training=True),
    "instance_norm": lambda x, y: F.instance_norm(y),
    "matmul": lambda x, y: x @ x.t(),
    "bmm": lambda x, y: y[0] @ y[1],
    "mv": lambda x, y: x @ x[0],
    "dot": lambda x, y: x[0].dot(x[1]),
    "addmm": lambda x, y: torch.addmm(x[:, :4], x, x.t(), beta=0.5, alpha=2),
    "einsum": lambda x, y: torch.einsum("ij,kj->ik", x, x),
    "linear": lambda x, y: F.linear(x, x, x[:, 0]),
    "conv2d": lambda x, y: F.conv2d(y, y[:, :, :3, :3], padding=1),
    "conv2d, channels last": lambda x, y: F.conv2d(
        y.contiguous(memory_format=torch.channels_last), y[:, :, :3, :3]
    ),
    "conv_transpose2d": lambda x, y: F.conv_transpose2d(y, y[:, :1, :3, :3].repeat(2, 1, 1, 1)),
    "attention": lambda x, y: F.scaled_dot_product_attention(y, y, y, is_causal=True),
    "max_pool2d": lambda x, y: F.max_pool2d(y, 2),
    "avg_pool2d": lambda x, y: F.avg_pool2d(y, 2),
    "adaptive_avg_pool2d": lambda x, y: F.adaptive_avg_pool2d(y, 3),
    "interpolate": lambda x, y: F.interpolate(y, scale_factor=2, mode="bilinear"),
    "grid_sample": lambda x, y: F.grid_sample(
        y, y[:, :2].permute(0, 2, 3, 1).contiguous() / 2, align_corners=False
    ),
    "embedding": lambda x, y: F.embedding(torch.tensor([0, 3]), x),
    "embedding_bag": lambda x, y: F.embedding_bag(torch.tensor([[0, 3]]), x),
    "cross_entropy": lambda x, y: F.cross_entropy(x, torch.tensor([0, 5, 2, 1])),
    "mse_loss": lambda x, y: F.mse_loss(x, x.flip(0)),
    "bce with logits": lambda x, y: F.binary_cross_entropy_with_logits(x, x.sigmoid()),
    "where": lambda x, y: torch.where(x > 0, x, -x),
    "stack": lambda x, y: torch.stack([x, x]),
    "sort": lambda x, y: x.flip(1).sort(1).values,
    "masked_fill": lambda x, y: x.masked_fill(x > 1, 7.0),
    "gather": lambda x, y: x.gather(0, torch.zeros(1, 6, dtype=torch.int64)),
    "roll": lambda x, y: x.roll(1, 0),
    "pad": lambda x, y: F.pad(y, (1, 1), value=0.5),
    "renorm": lambda x, y: x.renorm(2, 0, 1.0),
    "in place": lambda x, y: x.clone().mul_(3).add_(x).div_(7),
}
SEVERAL_ROUNDINGS = {
    "in place", "instance_norm", "cross_entropy", "bce with logits", "einsum", "grid_sample",
    "addcdiv", "log", "sqrt", "rsqrt", "attention", "clamp", "pow",
}  # fmt: skip
"""More than one op, or float32 inside that is itself not exact to a half step of the result."""
STORED_INSIDE = {"logsumexp"}
"""Four roundings, the first of exponentials whose error the logarithm of a small sum magnifies."""


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("name", OPS)
def test_results_are_the_exact_ones_rounded_once_in_the_layout_of_the_cpus_own(
    name: str, dtype: torch.dtype
) -> None:
    x, y = table().to(dtype), image().to(dtype)
    native = OPS[name](x, y)
    with CheckedLikeCuda():
        emulated = OPS[name](x, y)
    assert (emulated.dtype, emulated.shape, emulated.stride()) == (dtype, native.shape, native.stride())
    exact = OPS[name](x.double(), y.double())
    bits = 10 if dtype is HALF else 7
    step = 2.0 ** (exact.abs().clamp(min=2.0**-14).log2().floor() - bits)
    allowed = 4.0 if name in STORED_INSIDE else 2.0 if name in SEVERAL_ROUNDINGS else 0.501
    finite = exact.isfinite()
    error = ((emulated.double() - exact).abs() / step)[finite & exact.abs().le(65504)]
    assert error.numel() == 0 or error.max().item() <= allowed


# --- the tables -------------------------------------------------------------------------------------------


def test_every_op_in_the_tables_exists() -> None:
    known = {
        name.removeprefix("aten::").partition(".")[0].rstrip("_")
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::")
    }
    # not in every version of torch from 2.6 on
    newer = {"_foreach_clone", "_fused_rms_norm", "_fused_rms_norm_backward"}
    gone_from_2_14 = {"cholesky"}
    named = {name.rstrip("_") for name in _MOVES | _NEITHER | _CPU_ONLY | _MIXED.keys()}
    assert named - known - newer - gone_from_2_14 == set()


@pytest.mark.parametrize(
    ("func", "arithmetic"),
    [
        (aten.mm.default, Arithmetic.COMPUTES),
        (aten.add_.Tensor, Arithmetic.COMPUTES),
        (aten._foreach_addcdiv_.ScalarList, Arithmetic.COMPUTES),
        (aten.scatter.reduce, Arithmetic.COMPUTES),
        (aten.scatter.src, Arithmetic.MOVES),
        (aten.view.default, Arithmetic.MOVES),
        (aten.bernoulli_.float, Arithmetic.MOVES),
        (aten.copy_.default, Arithmetic.CASTS),
        (aten._linalg_svd.default, Arithmetic.FAILS),
        (aten.angle.default, Arithmetic.REFUSED),
    ],
)
def test_ops_are_classified_by_what_they_do(func: Any, arithmetic: Arithmetic) -> None:
    assert classify(func).arithmetic is arithmetic

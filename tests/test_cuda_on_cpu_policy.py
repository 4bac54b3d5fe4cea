"""CUDA's autocast on a CPU: every op on CUDA's lists does on the CPU what it does on a GPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ampdoctor.probe.cuda.dispatcher_policy as dispatcher_module
from ampdoctor.probe.cuda.autocast_lists import Policy
from ampdoctor.probe.cuda.dispatcher_kernels import aten_overload
from ampdoctor.probe.cuda.dispatcher_policy import (
    covered_by_cuda_autocast,
    dispatcher_policy,
    installed_policies,
    unlisted_policies,
)
from ampdoctor.probe.cuda.on_cpu import (
    EmulatedRefusal,
    cuda_autocast_policy,
)
from case_runner import scan

HALF, BRAIN, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


@pytest.fixture
def on_cuda() -> Iterator[None]:
    """Under float16 autocast, with CUDA's policy."""
    with cuda_autocast_policy(), torch.autocast("cpu", dtype=HALF):
        yield


def ones(*shape: int, dtype: torch.dtype = HALF) -> Tensor:
    return torch.ones(*shape, dtype=dtype)


# --- the lists cover the installed torch -----------------------------------------------------------------


def test_every_op_that_cudas_autocast_covers_has_a_policy() -> None:
    """A torch newer than our list brings ops of its own: the dispatcher says what it does with them."""
    unlisted = unlisted_policies()
    for name, policy in unlisted.items():
        warnings.warn(f"{name} is on no list of ours; torch {torch.__version__} says {policy}", stacklevel=1)
    assert [name for name, policy in unlisted.items() if policy is None] == []
    assert installed_policies().keys() >= unlisted.keys()


def test_the_dispatcher_confirms_our_list() -> None:
    """Asked of the installed torch itself; the few it cannot be asked about take no made-up arguments."""
    told = {
        name: (policy, dispatcher_policy(op))
        for name, policy in installed_policies().items()
        if policy is not Policy.RECURRENT and (op := aten_overload(name)) is not None
    }
    by_dtype_argument = {Policy.FLOAT32_RESULT, Policy.FLOAT32_OVERLOAD}
    wrong = {
        name: (listed, shown)
        for name, (listed, shown) in told.items()
        if shown is not None and shown is not listed and {shown, listed} != by_dtype_argument
    }
    assert wrong == {}
    assert {name for name, (_, shown) in told.items() if shown is None} <= {
        "einsum", "softmax.int", "log_softmax.int", "index_put",
    }  # fmt: skip


def test_an_op_that_torch_does_not_list_is_not_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    without = covered_by_cuda_autocast() - {"mm"}
    monkeypatch.setattr(dispatcher_module, "covered_by_cuda_autocast", lambda: without)
    policies = installed_policies.__wrapped__()
    assert "mm" not in policies
    assert policies["addmm"] is Policy.LOWER


def test_every_op_that_only_the_cpus_autocast_covers_passes_through() -> None:
    only_cpu = [
        name
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::")
        and torch._C._dispatch_has_kernel_for_dispatch_key(name, "AutocastCPU")
        and not torch._C._dispatch_has_kernel_for_dispatch_key(name, "AutocastCUDA")
    ]
    assert "aten::ctc_loss.Tensor" in only_cpu
    with cuda_autocast_policy():
        fall_through = [
            name
            for name in only_cpu
            if torch._C._dispatch_kernel_for_dispatch_key_is_fallthrough(name, "AutocastCPU")
        ]
    assert fall_through == only_cpu


# --- lower precision --------------------------------------------------------------------------------------

LOWERED: dict[str, Callable[[], Tensor]] = {
    "linear": lambda: F.linear(ones(2, 3, dtype=SINGLE), ones(4, 3, dtype=SINGLE)),
    "matmul": lambda: ones(2, 3, dtype=SINGLE) @ ones(3, 2, dtype=SINGLE),
    "mm": lambda: torch.mm(ones(2, 3, dtype=SINGLE), ones(3, 2, dtype=SINGLE)),
    "bmm": lambda: torch.bmm(ones(1, 2, 3, dtype=SINGLE), ones(1, 3, 2, dtype=SINGLE)),
    "baddbmm": lambda: torch.baddbmm(
        ones(1, dtype=SINGLE), ones(1, 2, 3, dtype=SINGLE), ones(1, 3, 2, dtype=SINGLE)
    ),
    "addbmm": lambda: torch.addbmm(
        ones(1, dtype=SINGLE), ones(1, 2, 3, dtype=SINGLE), ones(1, 3, 2, dtype=SINGLE)
    ),
    "addmm": lambda: torch.addmm(ones(2, dtype=SINGLE), ones(2, 3, dtype=SINGLE), ones(3, 2, dtype=SINGLE)),
    "addmv": lambda: torch.addmv(ones(2, dtype=SINGLE), ones(2, 3, dtype=SINGLE), ones(3, dtype=SINGLE)),
    "addr": lambda: torch.addr(ones(1, dtype=SINGLE), ones(2, dtype=SINGLE), ones(3, dtype=SINGLE)),
    "mv": lambda: torch.mv(ones(2, 3, dtype=SINGLE), ones(3, dtype=SINGLE)),
    "vecdot": lambda: torch.linalg.vecdot(ones(3, dtype=SINGLE), ones(3, dtype=SINGLE)),
    "multi_dot": lambda: torch.linalg.multi_dot([ones(2, 2, dtype=SINGLE)] * 3),
    "einsum": lambda: torch.einsum("ij,kj->ik", ones(2, 3, dtype=SINGLE), ones(2, 3, dtype=SINGLE)),
    "conv1d": lambda: F.conv1d(ones(1, 1, 4, dtype=SINGLE), ones(1, 1, 2, dtype=SINGLE)),
    "conv1d, padding by name": lambda: F.conv1d(
        ones(1, 1, 4, dtype=SINGLE), ones(1, 1, 3, dtype=SINGLE), padding="same"
    ),
    "conv2d": lambda: F.conv2d(ones(1, 1, 4, 4, dtype=SINGLE), ones(1, 1, 2, 2, dtype=SINGLE)),
    "conv3d": lambda: F.conv3d(ones(1, 1, 2, 2, 2, dtype=SINGLE), ones(1, 1, 2, 2, 2, dtype=SINGLE)),
    "conv_transpose2d": lambda: F.conv_transpose2d(
        ones(1, 1, 4, 4, dtype=SINGLE), ones(1, 1, 2, 2, dtype=SINGLE)
    ),
    "prelu": lambda: F.prelu(ones(2, 3, dtype=SINGLE), ones(1, dtype=SINGLE)),
    "attention": lambda: F.scaled_dot_product_attention(
        ones(1, 1, 2, 4, dtype=SINGLE), ones(1, 1, 2, 4, dtype=SINGLE), ones(1, 1, 2, 4, dtype=SINGLE)
    ),
    "LSTMCell": lambda: nn.LSTMCell(3, 2)(ones(1, 3, dtype=SINGLE))[1],
    "GRUCell": lambda: nn.GRUCell(3, 2)(ones(1, 3, dtype=SINGLE)),
    "RNNCell": lambda: nn.RNNCell(3, 2)(ones(1, 3, dtype=SINGLE)),
}


@pytest.mark.parametrize("name", LOWERED)
def test_runs_in_the_lower_dtype(name: str, on_cuda: None) -> None:
    assert LOWERED[name]().dtype is HALF


def test_the_lower_dtype_is_the_one_autocast_was_given() -> None:
    with cuda_autocast_policy(), torch.autocast("cpu", dtype=BRAIN):
        assert torch.mv(ones(2, 3, dtype=SINGLE), ones(3, dtype=SINGLE)).dtype is BRAIN


# --- float32 ----------------------------------------------------------------------------------------------

WIDENED: dict[str, Callable[[], Tensor]] = {
    "exp": lambda: ones(2).exp(),
    "log": lambda: ones(2).log(),
    "log1p": lambda: torch.log1p(ones(2)),
    "rsqrt": lambda: ones(2).rsqrt(),
    "reciprocal": lambda: ones(2).reciprocal(),
    "pow, scalar exponent": lambda: ones(2) ** 2,
    "pow, tensor exponent": lambda: ones(2) ** ones(2),
    "pow, scalar base": lambda: 2 ** ones(2),
    "softplus": lambda: F.softplus(ones(2)),
    "layer_norm": lambda: F.layer_norm(ones(2, 3), (3,), ones(3), ones(3)),
    "group_norm": lambda: F.group_norm(ones(1, 4, 2), 2),
    "cosine_similarity": lambda: F.cosine_similarity(ones(1, 3), ones(1, 3)),
    "cross_entropy": lambda: F.cross_entropy(ones(1, 3), torch.tensor([1])),
    "nll_loss": lambda: F.nll_loss(ones(1, 3), torch.tensor([1])),
    "mse_loss": lambda: F.mse_loss(ones(2), ones(2)),
    "l1_loss": lambda: F.l1_loss(ones(2), ones(2)),
    "kl_div": lambda: F.kl_div(ones(2), ones(2), reduction="sum"),
    "bce with logits": lambda: F.binary_cross_entropy_with_logits(ones(2), ones(2)),
    "cdist": lambda: torch.cdist(ones(2, 3), ones(2, 3)),
    "logsumexp": lambda: ones(2).logsumexp(0),
    "interpolate": lambda: F.interpolate(ones(1, 1, 2, 2), scale_factor=2),
    "interpolate, bilinear": lambda: F.interpolate(ones(1, 1, 2, 2), scale_factor=2, mode="bilinear"),
    "softmax": lambda: ones(2).softmax(0),
    "log_softmax": lambda: ones(2).log_softmax(0),
    "sum": lambda: ones(2).sum(),
    "sum over a dimension": lambda: ones(2, 3).sum(0),
    "prod": lambda: ones(2).prod(),
    "prod over a dimension": lambda: ones(2, 3).prod(0),
    "cumsum": lambda: ones(2).cumsum(0),
    "cumprod": lambda: ones(2).cumprod(0),
    "vector_norm": lambda: torch.linalg.vector_norm(ones(2)),
    "matrix_norm": lambda: torch.linalg.matrix_norm(ones(2, 2)),
    "norm": lambda: ones(2).norm(),
    "norm over a dimension": lambda: torch.ops.aten.norm.ScalarOpt_dim(ones(2, 3), 2, [1], True),
    "norm, by overload": lambda: torch.ops.aten.norm.Scalar(ones(2)),
}


def test_rms_norm_runs_in_float32_from_the_torch_on_that_lists_it(on_cuda: None) -> None:
    listed = "rms_norm" in covered_by_cuda_autocast()  # not in 2.6
    assert F.rms_norm(ones(2, 3), (3,)).dtype is (SINGLE if listed else HALF)


@pytest.mark.parametrize("name", WIDENED)
def test_runs_in_float32(name: str, on_cuda: None) -> None:
    assert WIDENED[name]().dtype is SINGLE


@pytest.mark.parametrize("wanted", [HALF, DOUBLE])
def test_a_dtype_the_caller_asks_for_is_kept(wanted: torch.dtype, on_cuda: None) -> None:
    assert ones(2).softmax(0, dtype=wanted).dtype is wanted
    assert ones(2).sum(dtype=wanted).dtype is wanted
    assert ones(2, 2).sum(0, dtype=wanted).dtype is wanted


def test_a_norm_keeps_its_arguments(on_cuda: None) -> None:
    x = torch.tensor([[3.0, 4.0], [0.0, -2.0]], dtype=HALF)
    assert torch.ops.aten.norm.ScalarOpt_dim(x, 1, [1]).tolist() == [7.0, 2.0]
    assert torch.ops.aten.norm.ScalarOpt_dim(x, 2, [1], True).tolist() == [[5.0], [2.0]]
    assert torch.ops.aten.norm.Scalar(x, float("inf")).item() == 4.0


def test_norm_of_integers_is_left_to_the_op(on_cuda: None) -> None:
    with pytest.raises(RuntimeError, match="floating point"):
        torch.ops.aten.norm.Scalar(torch.ones(2, dtype=torch.int64))


def test_float64_and_integers_are_never_cast(on_cuda: None) -> None:
    double = ones(2, 2, dtype=DOUBLE)
    assert double.mv(double[0]).dtype is DOUBLE
    assert double.exp().dtype is DOUBLE
    assert double.softmax(0).dtype is DOUBLE
    assert double.sum().dtype is DOUBLE
    assert torch.addcmul(double, double, double).dtype is DOUBLE
    assert torch.ones(2, dtype=torch.int32).sum().dtype is torch.int64


# --- widest, none, refused --------------------------------------------------------------------------------


def test_the_widest_dtype_wins(on_cuda: None) -> None:
    assert torch.addcmul(ones(2), ones(2), ones(2)).dtype is HALF
    assert torch.addcmul(ones(2), ones(2), ones(2, dtype=SINGLE)).dtype is SINGLE
    assert torch.dot(ones(2), ones(2, dtype=SINGLE)).dtype is SINGLE
    index = torch.tensor([0, 1])
    assert torch.scatter_add(ones(2, dtype=SINGLE), 0, index, ones(2)).dtype is SINGLE
    assert torch.index_put(ones(2), (index,), ones(2, dtype=SINGLE)).dtype is SINGLE
    grid = ones(1, 1, 1, 2, dtype=SINGLE)
    assert F.grid_sample(ones(1, 1, 2, 2), grid, align_corners=False).dtype is SINGLE
    assert F.grid_sample(ones(1, 1, 2, 2), grid.half(), align_corners=False).dtype is HALF


def test_a_second_half_precision_dtype_is_refused_where_the_widest_is_sought(on_cuda: None) -> None:
    with pytest.raises(EmulatedRefusal, match="bfloat16"):
        torch.addcmul(ones(2), ones(2), ones(2, dtype=BRAIN))


def test_binary_cross_entropy_is_refused_as_by_cuda(on_cuda: None) -> None:
    with pytest.raises(EmulatedRefusal, match="binary_cross_entropy_with_logits"):
        F.binary_cross_entropy(ones(2).sigmoid(), ones(2))
    with torch.autocast("cpu", enabled=False):
        loss = F.binary_cross_entropy(torch.tensor([0.5]), torch.tensor([1.0]))
    assert loss.item() == pytest.approx(0.6931, abs=1e-4)  # log 2


def test_ops_on_neither_list_keep_their_dtype(on_cuda: None) -> None:
    assert ones(2).mean().dtype is HALF
    assert ones(2).var().dtype is HALF
    assert (ones(2) * 2).dtype is HALF
    assert ones(2).sigmoid().dtype is HALF
    assert torch.cat([ones(2), ones(2)]).dtype is HALF
    assert torch.cat([ones(2), ones(2, dtype=SINGLE)]).dtype is SINGLE


def test_ops_on_the_cpus_list_alone_are_not_widened() -> None:
    x = ones(1, 1, 4, 4)
    with torch.autocast("cpu", dtype=HALF):
        assert F.pad(x, (1, 1, 1, 1), mode="reflect").dtype is SINGLE
    with cuda_autocast_policy(), torch.autocast("cpu", dtype=HALF):
        assert F.pad(x, (1, 1, 1, 1), mode="reflect").dtype is HALF
        with pytest.raises(RuntimeError, match="float or double"):  # as quantile does on CUDA
            torch.quantile(ones(3), 0.5)


@pytest.mark.parametrize("first", [torch.no_grad, torch.inference_mode])
def test_a_weight_cast_first_without_gradients_has_those_that_the_installed_torch_gives(first: Any) -> None:
    weight, x = torch.ones(2, 2, requires_grad=True), ones(2, dtype=SINGLE)
    with torch.autocast("cpu", dtype=BRAIN):  # linear's kernel is PyTorch's own
        with first():
            F.linear(x, weight)
        expected = F.linear(x, weight).requires_grad
    with cuda_autocast_policy(), torch.autocast("cpu", dtype=HALF):
        with first():
            torch.mv(weight, x)  # and mv's is ours
        assert torch.mv(weight, x).requires_grad == expected


def test_as_built_the_user_s_own_autocast_for_cuda_is_emulated() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.full((1,), 300.0))

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cuda", dtype=HALF):
                return F.linear(x, self.weight[None]) * 1000.0

    _, report = scan(Net(), torch.full((1, 1), 200.0), lambda m, x: m(x).float().sum(), mode="none")
    assert report.verdict == "forward-overflow"  # 60,000 x 1,000 in half
    assert report.first_fault is not None
    assert report.first_fault.op == "aten::mul"

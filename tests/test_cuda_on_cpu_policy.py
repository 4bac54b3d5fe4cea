"""CUDA's autocast on a CPU: every op on CUDA's lists does on the CPU what it does on a GPU."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from ampdoctor.probe.cuda_autocast_lists import CUDA_ONLY_KERNELS, CUDA_POLICIES
from ampdoctor.probe.cuda_on_cpu import (
    EmulatedRefusal,
    autocast_kept_off,
    cuda_autocast_policy,
    decomposed_rnns,
    requested_autocast,
)

HALF, BRAIN, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


@pytest.fixture
def on_cuda() -> Iterator[None]:
    """Under float16 autocast, with CUDA's policy."""
    with cuda_autocast_policy(), torch.autocast("cpu", dtype=HALF):
        yield


class Seen(TorchDispatchMode):
    """Counts the ops that run, below autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: Counter[str] = Counter()
        self.casts: list[tuple[tuple[int, ...], torch.dtype]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.ops[func._schema.name] += 1
        if func._schema.name == "aten::_to_copy":
            self.casts.append((tuple(result.shape), result.dtype))
        return result


def ones(*shape: int, dtype: torch.dtype = HALF) -> Tensor:
    return torch.ones(*shape, dtype=dtype)


def dispatch_table() -> dict[str, str]:
    return {
        name: torch._C._dispatch_dump(name)
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::")
    }


# --- the lists cover the installed torch -----------------------------------------------------------------


def test_every_op_that_cudas_autocast_covers_has_a_policy() -> None:
    covered = {
        name.removeprefix("aten::")
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::") and torch._C._dispatch_has_kernel_for_dispatch_key(name, "AutocastCUDA")
    }
    unknown = covered - CUDA_POLICIES.keys() - CUDA_ONLY_KERNELS.keys()
    # Named tensors, which older versions of torch had; no Python kernel can take a name.
    assert {name for name in unknown if "imname" not in name and ".names_" not in name} == set()


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
    "rms_norm": lambda: F.rms_norm(ones(2, 3), (3,)),
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


# --- recurrent layers -------------------------------------------------------------------------------------

RECURRENT: dict[str, Callable[[], nn.Module]] = {
    "LSTM": lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True),
    "LSTM with projections": lambda: nn.LSTM(3, 4, proj_size=2),
    "GRU": lambda: nn.GRU(3, 4, dropout=0.5, num_layers=2),
    "RNN tanh": lambda: nn.RNN(3, 4),
    "RNN relu": lambda: nn.RNN(3, 4, nonlinearity="relu", bias=False),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers_run_in_the_lower_dtype_and_train(name: str, on_cuda: None) -> None:
    layer = RECURRENT[name]()
    output, hidden = layer(torch.randn(2, 5, 3))
    assert output.dtype is HALF
    assert (hidden[1] if isinstance(hidden, tuple) else hidden).dtype is HALF
    output.sum().backward()
    assert all(p.grad is not None and p.grad.dtype is SINGLE for p in layer.parameters())


def test_recurrent_layers_take_packed_sequences(on_cuda: None) -> None:
    layer = nn.LSTM(3, 4)
    packed = nn.utils.rnn.pack_sequence([torch.randn(5, 3), torch.randn(2, 3)])
    output, (h, c) = layer(packed)
    assert output.data.dtype is h.dtype is c.dtype is HALF
    output.data.sum().backward()
    assert layer.weight_hh_l0.grad is not None


def test_a_recurrent_layer_is_close_to_float32(on_cuda: None) -> None:
    torch.manual_seed(0)
    layer, x = nn.LSTM(3, 4), torch.randn(6, 2, 3)
    with torch.autocast("cpu", enabled=False):
        exact, _ = layer(x)
    output, _ = layer(x)
    assert (output.float() - exact).abs().max().item() < 2e-3


def test_decomposed_rnns_show_every_gate_and_keep_the_result() -> None:
    torch.manual_seed(0)
    layer, x = nn.GRU(3, 4, num_layers=2), torch.randn(5, 2, 3)
    expected, _ = layer(x)
    with decomposed_rnns(), decomposed_rnns(), Seen() as seen:
        output, _ = layer(x)
        output.sum().backward()
    assert torch.allclose(output, expected, atol=1e-6)
    assert "aten::mkldnn_rnn_layer" not in seen.ops
    assert seen.ops["aten::sigmoid_"] + seen.ops["aten::sigmoid"] == 2 * 5 * 2  # layers x steps x gates
    with Seen() as seen, torch.no_grad():
        nn.LSTM(3, 4)(x)
    assert seen.ops["aten::mkldnn_rnn_layer"] == 1


def test_onednn_stays_on_after_a_recurrent_layer_that_raises(on_cuda: None) -> None:
    with pytest.raises(RuntimeError):
        nn.LSTM(3, 4)(torch.randn(2, 5, 7))
    assert torch.backends.mkldnn.enabled


# --- the cache of weights ---------------------------------------------------------------------------------


def test_a_weight_is_cast_once_per_autocast_context() -> None:
    cell, x = nn.LSTMCell(3, 2), torch.randn(1, 3)
    with cuda_autocast_policy():
        for _ in range(2):
            with torch.autocast("cpu", dtype=HALF), Seen() as seen:
                state = None
                for _ in range(3):
                    state = cell(x, state)
            assert seen.casts.count(((8, 3), HALF)) == 1


def test_an_updated_weight_is_cast_again_in_the_next_context() -> None:
    weight = nn.Parameter(torch.ones(2, 3))
    with cuda_autocast_policy():
        with torch.autocast("cpu", dtype=HALF):
            assert torch.mv(weight, torch.ones(3)).tolist() == [3.0, 3.0]
        with torch.no_grad():
            weight.mul_(2)
        with torch.autocast("cpu", dtype=HALF):
            assert torch.mv(weight, torch.ones(3)).tolist() == [6.0, 6.0]


def test_without_autocasts_cache_every_use_is_cast() -> None:
    cell, x = nn.LSTMCell(3, 2), torch.randn(1, 3)
    with cuda_autocast_policy(), torch.autocast("cpu", dtype=HALF, cache_enabled=False), Seen() as seen:
        cell(x, cell(x))
    assert seen.casts.count(((8, 3), HALF)) == 2


# --- what user code says about CUDA -----------------------------------------------------------------------


def matmul_dtype() -> torch.dtype:
    return (ones(2, 2, dtype=SINGLE) @ ones(2, 2, dtype=SINGLE)).dtype


def test_autocast_named_for_cuda_is_the_emulated_one() -> None:
    with cuda_autocast_policy():
        assert matmul_dtype() is SINGLE
        with torch.autocast("cuda"):
            assert matmul_dtype() is HALF
            with torch.amp.autocast("cuda", dtype=BRAIN):
                assert matmul_dtype() is BRAIN
            with torch.autocast(device_type="cuda", enabled=False):
                assert matmul_dtype() is SINGLE
            with torch.autocast("cuda", dtype=SINGLE):
                assert (ones(2, 2) @ ones(2, 2)).dtype is SINGLE
            assert matmul_dtype() is HALF
        assert matmul_dtype() is SINGLE


def test_the_old_name_of_cudas_autocast_is_the_emulated_one_too() -> None:
    with warnings.catch_warnings(), cuda_autocast_policy():
        warnings.simplefilter("ignore", FutureWarning)
        with torch.cuda.amp.autocast():
            assert matmul_dtype() is HALF
            with torch.cuda.amp.autocast(enabled=False):
                assert matmul_dtype() is SINGLE


def test_autocast_named_by_a_tensors_device_has_cudas_default_dtype() -> None:
    with cuda_autocast_policy(), torch.autocast(torch.ones(1).device.type):
        assert matmul_dtype() is HALF


def test_questions_about_cudas_autocast_are_answered_for_the_emulated_one() -> None:
    with cuda_autocast_policy():
        assert not torch.is_autocast_enabled()
        with torch.autocast("cpu", dtype=BRAIN):
            assert torch.is_autocast_enabled()
            assert torch.is_autocast_enabled("cuda")
            assert torch.get_autocast_dtype("cuda") is BRAIN
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                assert torch.get_autocast_gpu_dtype() is BRAIN
            with torch.autocast("cuda", enabled=False):
                assert not torch.is_autocast_enabled()
                assert not torch.is_autocast_enabled("cpu")
        assert not torch.is_autocast_enabled()


def test_autocast_switched_by_hand_for_cuda_switches_the_emulated_one() -> None:
    with cuda_autocast_policy():
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", BRAIN)
        assert matmul_dtype() is BRAIN
        torch.set_autocast_enabled(False)
        assert matmul_dtype() is SINGLE


def test_a_decorated_function_runs_in_the_emulated_autocast() -> None:
    with cuda_autocast_policy():
        assert torch.autocast("cuda")(matmul_dtype)() is HALF


@pytest.mark.parametrize(("enabled", "inside"), [(True, BRAIN), (False, SINGLE)])
def test_autocast_objects_made_while_user_code_is_imported_keep_what_was_asked(
    enabled: bool, inside: torch.dtype
) -> None:
    with requested_autocast():
        decorated = torch.autocast("cuda", dtype=BRAIN, enabled=enabled)(matmul_dtype)
    with cuda_autocast_policy(), torch.autocast("cpu", dtype=HALF):
        assert decorated() is inside


class Cubed(torch.autograd.Function):
    seen: list[tuple[torch.dtype, bool]]

    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
    def forward(ctx: Any, x: Tensor) -> Tensor:
        Cubed.seen.append((x.dtype, torch.is_autocast_enabled("cpu")))
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x * x * grad


class Doubled(torch.autograd.Function):
    seen: list[bool]

    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        Doubled.seen.append(torch.is_autocast_enabled("cpu"))
        return grad * 2


def test_custom_fwd_casts_and_switches_autocast_off() -> None:
    Cubed.seen = []
    x = torch.full((1,), 2.0, dtype=HALF, requires_grad=True)
    with cuda_autocast_policy():
        with torch.autocast("cuda"):
            y = Cubed.apply(x)
        y.backward(torch.ones_like(y))
    assert Cubed.seen == [(SINGLE, False)]
    assert x.grad is not None
    assert x.grad.item() == 12.0


def test_custom_bwd_runs_backward_under_the_autocast_of_its_forward() -> None:
    Doubled.seen = []
    x = torch.ones(1, requires_grad=True)
    with cuda_autocast_policy():
        with torch.autocast("cuda"):
            y = Doubled.apply(x)
        y.backward(torch.ones_like(y))
    assert Doubled.seen == [True]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_autocast_is_kept_off_for_a_reference(device: str) -> None:
    with torch.autocast("cpu", dtype=HALF):
        with warnings.catch_warnings(), autocast_kept_off():
            warnings.simplefilter("error")
            assert matmul_dtype() is SINGLE
            with torch.autocast(device, dtype=BRAIN):
                assert matmul_dtype() is SINGLE
                assert not torch.is_autocast_enabled(device)
        assert matmul_dtype() is HALF


# --- afterwards everything is as before -------------------------------------------------------------------

CHANGED_WHILE_OPEN = [
    (torch, "set_autocast_enabled"),
    (torch, "set_autocast_dtype"),
    (torch, "set_autocast_cpu_enabled"),
    (torch, "set_autocast_cpu_dtype"),
    (torch, "set_autocast_gpu_dtype"),
    (torch, "clear_autocast_cache"),
    (torch.autocast, "__init__"),
    (torch.amp.autocast_mode, "_cast"),
]


@pytest.mark.parametrize("raises", [False, True])
def test_everything_is_as_before_afterwards(raises: bool) -> None:
    functions = [getattr(owner, name) for owner, name in CHANGED_WHILE_OPEN]
    kernels = dispatch_table()
    state = [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")]
    try:
        with cuda_autocast_policy(), torch.autocast("cuda", dtype=HALF):
            assert dispatch_table() != kernels
            if raises:
                raise KeyError("the user's own")
    except KeyError:
        assert raises
    assert dispatch_table() == kernels
    assert [getattr(owner, name) for owner, name in CHANGED_WHILE_OPEN] == functions
    assert [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")] == state


def test_the_cpus_own_policy_is_back_afterwards() -> None:
    with cuda_autocast_policy():
        pass
    with torch.autocast("cpu", dtype=HALF):
        assert ones(2).softmax(0).dtype is HALF
        assert F.pad(ones(1, 1, 4, 4), (1, 1, 1, 1), mode="reflect").dtype is SINGLE
        assert F.binary_cross_entropy(ones(2), ones(2)).dtype is SINGLE


def test_an_inner_context_changes_nothing() -> None:
    with cuda_autocast_policy(), torch.autocast("cpu", dtype=HALF):
        with cuda_autocast_policy():
            assert ones(2).softmax(0).dtype is SINGLE
        assert ones(2).softmax(0).dtype is SINGLE
    assert ones(2).softmax(0).dtype is HALF


def test_opened_inside_autocast_it_follows_that() -> None:
    with torch.autocast("cpu", dtype=BRAIN):
        with cuda_autocast_policy():
            assert torch.is_autocast_enabled("cuda")
            assert torch.get_autocast_dtype("cuda") is BRAIN
            assert matmul_dtype() is BRAIN
        assert matmul_dtype() is BRAIN

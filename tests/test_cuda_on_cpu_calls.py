"""What user code says about CUDA's autocast holds on a CPU; afterwards everything is as it was."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ampdoctor.probe.cuda.on_cpu import (
    autocast_kept_off,
    cuda_autocast_policy,
    requested_autocast,
)

HALF, BRAIN, SINGLE = torch.float16, torch.bfloat16, torch.float32


def ones(*shape: int, dtype: torch.dtype = HALF) -> Tensor:
    return torch.ones(*shape, dtype=dtype)


def dispatch_table() -> dict[str, str]:
    return {
        name: torch._C._dispatch_dump(name)
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::")
    }


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

"""What every test must leave behind: nothing. A scan that leaks a mode fails the test that ran it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn.modules import module as nn_module
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

ORIGINAL_CALL = torch.nn.Module.__call__
GLOBAL_HOOKS = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_forward_hooks_always_called",
    "_global_forward_hooks_with_kwargs",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
    "_global_buffer_registration_hooks",
    "_global_module_registration_hooks",
    "_global_parameter_registration_hooks",
)


def process_state() -> dict[str, object]:
    """The switches of this process that a scan touches, by name."""
    half = torch.zeros(2, dtype=torch.float16)
    with torch.autocast("cpu", dtype=torch.float16):
        # The CPU's own autocast leaves a half softmax in half; CUDA's policy, emulated, makes it float32.
        softmax_under_autocast = half.softmax(0).dtype
    return {
        "dispatch modes": list(_get_current_dispatch_mode_stack()),
        "torch function modes": torch._C._len_torch_function_stack(),
        "autocast on the CPU": torch.is_autocast_enabled("cpu"),
        "autocast on CUDA": torch.is_autocast_enabled("cuda"),
        "CPU autocast dtype": torch.get_autocast_dtype("cpu"),
        "autocast cache": torch.is_autocast_cache_enabled(),
        "softmax under CPU autocast": softmax_under_autocast,
        "global module hooks": {name: len(getattr(nn_module, name, ())) for name in GLOBAL_HOOKS},
        "Module.__call__ is the original": torch.nn.Module.__call__ is ORIGINAL_CALL,
        "gradients": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "anomaly mode": torch.is_anomaly_enabled(),
        "default dtype": torch.get_default_dtype(),
        "TF32 in matmul": torch.backends.cuda.matmul.allow_tf32,
        "TF32 in cudnn": torch.backends.cudnn.allow_tf32,
        "matmul precision": torch.get_float32_matmul_precision(),
        "mkldnn": torch.backends.mkldnn.enabled,
        "cudnn": (torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark),
        "threads": torch.get_num_threads(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "saved tensor hooks allowed": torch._C._autograd._saved_tensors_hooks_is_enabled(),
    }


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    before = process_state()
    yield
    after = process_state()
    leaked = {name: (before[name], after[name]) for name in after if after[name] != before[name]}
    assert not leaked


SLOW_FILES = (
    "test_trained_models",
    "test_loss_scale",
    "test_team_workflow",
    "test_pytest_plugin",
    "test_github_action",
    "test_grad_histogram",
    "test_cli",
    "test_zoo",
    "test_html_browser",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slow files first, so that no process of several waits for the last; no GPU, no ``cuda`` tests."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("cuda"):
                item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))
    rank = {name: i for i, name in enumerate(SLOW_FILES)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))

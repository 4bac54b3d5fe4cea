"""How a pass runs: in which mode and dtype, on which device, imitating what."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from ampdoctor.errors import ConfigError
from ampdoctor.probe.cuda.on_cpu import autocast_kept_off, cuda_autocast_policy, decomposed_rnns
from ampdoctor.probe.passes.isolation import working_copy
from ampdoctor.probe.passes.process_flags import tf32_off
from ampdoctor.probe.plan import Plan

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True)
class Precision:
    """One way to run a model."""

    role: str
    """``reference`` | ``candidate``"""
    mode: str
    """``autocast`` | ``half`` | ``none``"""
    dtype: torch.dtype
    device: torch.device
    emulates_cuda: bool
    loss_scale: float

    @property
    def weights(self) -> torch.dtype | None:
        """The dtype that floating weights and batch tensors are cast to; None: as they are."""
        if self.role == "reference":
            return self.dtype
        return self.dtype if self.mode == "half" else None

    @contextmanager
    def open(self, model: nn.Module) -> Iterator[None]:
        """The model placed and cast on a working copy, and the process set up for this precision."""
        with ExitStack() as stack:
            stack.enter_context(
                working_copy(model, self.device, self.weights, widen=self.role == "reference")
            )
            if "torch._dynamo" in sys.modules:
                # A compiled function's graph would hide every op inside it. (Importing dynamo for this, where
                # nothing was compiled, would cost seconds.)
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            # The user's own detector would raise at the first NaN of a backward that is to be followed.
            stack.enter_context(torch.autograd.set_detect_anomaly(False))
            if self.role == "reference" or self.emulates_cuda:
                stack.enter_context(tf32_off())
            if self.emulates_cuda:
                stack.enter_context(cuda_autocast_policy())
            if self.role == "reference":
                # A model that opens autocast itself would give a reference in half precision; and a fused
                # recurrent kernel would hide the sites that the candidate shows.
                stack.enter_context(autocast_kept_off())
                if self.device.type == "cpu":
                    stack.enter_context(decomposed_rnns())
            yield

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """Autocast as this precision wants it, with a cache of its own: entered once a step."""
        active = self.role == "candidate" and self.mode == "autocast"
        with torch.autocast(self.device.type, dtype=self.dtype if active else None, enabled=active):
            yield


def reference(device: torch.device) -> Precision:
    """FP32, without autocast, at loss scale 1."""
    return Precision("reference", "none", torch.float32, device, False, 1.0)


def candidate(plan: Plan, device: torch.device, loss_scale: float) -> Precision:
    """What the user asked for, at this loss scale."""
    emulates = device.type == "cpu" and plan.emulate == "cuda" and plan.mode != "none"
    return Precision("candidate", plan.mode, DTYPES[plan.dtype], device, emulates, loss_scale)


def choose_device(name: str) -> torch.device:
    """The device a config names; ``auto`` is the GPU where there is one. Raises ConfigError without it."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if count == 0:
            raise ConfigError(
                f"precision.device: {name} was asked for, and this machine has no CUDA device",
                "leave precision.device out (auto) to emulate CUDA on the CPU",
            )
        if device.index is not None and device.index >= count:
            raise ConfigError(
                f"precision.device: {name} does not exist; this machine has {count} CUDA device(s)",
                f"use cuda:0 to cuda:{count - 1}",
            )
    return device


def device_name(device: torch.device) -> str:
    """The GPU's name; the processor's kind on a CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()

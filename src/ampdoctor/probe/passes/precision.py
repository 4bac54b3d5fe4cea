"""How a pass runs: in which mode and dtype, on which device, imitating what, and what of it in FP32."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ampdoctor.facts.words import AUTOCASTS, CASTS_WEIGHTS, Mode, Role
from ampdoctor.probe.cuda.on_cpu import autocast_kept_off, cuda_autocast_policy, decomposed_rnns
from ampdoctor.probe.passes.control_flow import control_flow_as_python
from ampdoctor.probe.passes.device import tf32_off
from ampdoctor.probe.passes.isolation import working_copy
from ampdoctor.probe.passes.line_changes import lines_changed
from ampdoctor.probe.passes.module_formats import run_in_formats
from ampdoctor.probe.passes.scaled_parts import scaled_apart
from ampdoctor.probe.passes.wide_modules import only_the_model_is_low, run_wide, wide_tensors
from ampdoctor.probe.plan import LineChange, ModuleFormats, Plan, ScaledModule, WideModule

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True)
class Precision:
    """One way to run a model. What it does is asked here, never read off ``mode``."""

    role: Role
    mode: Mode
    dtype: torch.dtype
    device: torch.device
    emulates_cuda: bool
    """A CPU runs each op by CUDA's autocast policy and rounds as a GPU does."""
    loss_scale: float
    wide_modules: tuple[WideModule, ...] = ()
    """What of it runs in FP32."""
    wide_loss: bool = False
    """What is outside the model's modules runs in FP32."""
    scaled_modules: tuple[ScaledModule, ...] = ()
    """What of its backward runs at a scale of its own."""
    line_changes: tuple[LineChange, ...] = ()
    """Lines that it runs otherwise than they are written."""
    formats: tuple[ModuleFormats, ...] = ()
    """What its modules' values are rounded to; it is FP32 otherwise, as the reference is."""
    widens_casts: bool = False
    """Tensors that the model itself makes in 16 bits are made in FP32: the reference cannot run otherwise."""

    @property
    def is_reference(self) -> bool:
        """It is what others are compared with: all of it in ``dtype``, wide."""
        return self.role == "reference"

    @property
    def is_wide(self) -> bool:
        """All ops run in ``dtype``, whatever the model casts to or opens."""
        return self.is_reference or bool(self.formats)

    @property
    def autocasts(self) -> bool:
        """Forward runs under autocast."""
        return not self.is_wide and self.mode in AUTOCASTS

    @property
    def casts_weights(self) -> bool:
        """Weights, buffers and batch are cast to ``dtype`` before anything runs."""
        return self.is_wide or self.mode in CASTS_WEIGHTS

    def weight_dtype(self, built: torch.dtype) -> torch.dtype:
        """The dtype in which a floating weight, buffer or batch tensor of this dtype takes part."""
        if not self.casts_weights or (self.is_wide and built.itemsize > 4):
            return built
        return self.dtype

    def cast_input(self, tensor: Tensor) -> Tensor:
        """A floating tensor of the batch, as it takes part."""
        return tensor.to(self.weight_dtype(tensor.dtype))

    @contextmanager
    def open(self, model: nn.Module) -> Iterator[None]:
        """The model placed and cast on a working copy, and the process set up for this precision.

        Raises ConfigError for a wide module that the model does not have.
        """
        wide = wide_tensors(model, self.wide_modules)

        def dtype_of(tensor: Tensor) -> torch.dtype:
            if id(tensor) in wide:
                return torch.float32 if tensor.itemsize < 4 else tensor.dtype
            return self.weight_dtype(tensor.dtype)

        with ExitStack() as stack:
            stack.enter_context(working_copy(model, self.device, dtype_of))
            if "torch._dynamo" in sys.modules:
                # A compiled function's graph would hide every op inside it. (Importing dynamo for this, where
                # nothing was compiled, would cost seconds.)
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(control_flow_as_python())
            # The user's own detector would raise at the first NaN of a backward that is to be followed.
            stack.enter_context(torch.autograd.set_detect_anomaly(False))
            # On CUDA backward would run in a thread of its own, with autograd nodes numbered from 0: those
            # made there (recomputed, or of a graph of the gradient) would be taken for forward's.
            stack.enter_context(torch.autograd.set_multithreading_enabled(False))
            if self.is_wide or self.emulates_cuda:
                stack.enter_context(tf32_off())
            if self.emulates_cuda:
                stack.enter_context(cuda_autocast_policy())
            if self.is_wide:
                # A model that opens autocast itself would give a reference in half precision; and a fused
                # recurrent kernel would hide the sites that the candidate shows.
                stack.enter_context(autocast_kept_off())
                if self.device.type == "cpu":
                    stack.enter_context(decomposed_rnns())
            stack.enter_context(run_wide(model, self.wide_modules, self.device, self.dtype))
            stack.enter_context(scaled_apart(model, self.scaled_modules, self.device))
            stack.enter_context(run_in_formats(model, self.formats))
            stack.enter_context(lines_changed(self.line_changes, self.device))
            if self.wide_loss:
                stack.enter_context(
                    only_the_model_is_low(model, self.autocast_in_model, self.cast_input, self.wide_modules)
                )
            yield

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """Autocast as this precision wants it around a step, with a cache of its own: entered once."""
        with nullcontext() if self.wide_loss else self.autocast_in_model():
            yield

    @contextmanager
    def autocast_in_model(self) -> Iterator[None]:
        """Autocast as this precision wants it around the model."""
        dtype = self.dtype if self.autocasts else None
        with torch.autocast(self.device.type, dtype=dtype, enabled=self.autocasts):
            yield


def reference(device: torch.device, dtype: torch.dtype = torch.float32) -> Precision:
    """FP32 (or wider), without autocast, at loss scale 1."""
    return Precision("reference", "none", dtype, device, False, 1.0)


def candidate(plan: Plan, device: torch.device, loss_scale: float) -> Precision:
    """What the user asked for, at this loss scale; with ``formats`` FP32 whose modules round to them."""
    if plan.formats:
        return replace(reference(device), role="candidate", loss_scale=loss_scale, formats=plan.formats)
    emulates = device.type == "cpu" and plan.emulate == "cuda"
    return Precision(
        "candidate",
        plan.mode,
        DTYPES[plan.dtype],
        device,
        emulates,
        loss_scale,
        plan.wide_modules,
        plan.wide_loss,
        plan.scaled_modules,
        plan.line_changes,
    )

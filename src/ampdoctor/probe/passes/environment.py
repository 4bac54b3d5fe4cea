"""What ran where: the part of a trace that says what its numbers are numbers of."""

from __future__ import annotations

import platform

import torch

from ampdoctor.facts.environment import Environment
from ampdoctor.load.workload import Workload
from ampdoctor.probe.passes.device import device_name
from ampdoctor.probe.passes.precision import candidate
from ampdoctor.probe.plan import Plan
from ampdoctor.probe.watch.fused import refusal
from ampdoctor.version import VERSION


def environment_of(workload: Workload, plan: Plan, device: torch.device) -> Environment:
    """The environment in which the plan runs the workload on ``device``."""
    return Environment(
        tool_version=VERSION,
        torch_version=torch.__version__,
        python_version=platform.python_version(),
        device=str(device),
        device_name=device_name(device),
        emulates="cuda" if candidate(plan, device, 1.0).emulates_cuda else None,
        mode=plan.mode,
        dtype=plan.dtype,
        loss_scale=plan.loss_scale,
        title=workload.title,
        forward_only=workload.forward_only,
        batches=len(workload.batches),
        trainable_parameters=sum(p.numel() for p in workload.model.parameters() if p.requires_grad),
        scaler=plan.scaler,
        kernel_refusal=refusal() if device.type == "cuda" else "",
        own_policy=workload.own_policy,
    )

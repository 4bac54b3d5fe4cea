"""What modules cost: their share of the model's floating-point operations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ampdoctor.load.workload import Workload
from ampdoctor.probe.passes.device import choose_device, outside_autocast
from ampdoctor.probe.passes.one_pass import run_pass
from ampdoctor.probe.passes.precision import reference
from ampdoctor.probe.passes.stages import Progress
from ampdoctor.probe.plan import Plan
from ampdoctor.probe.watch.unrecorded import Absent


def flops_by_module(workload: Workload, plan: Plan, progress: Progress) -> dict[str, int]:
    """{module path: FLOPs of the products in its forward of the first batch, those inside it included}.

    Counted by ``torch.utils.flop_counter``; backward's are twice as many for each. {} where the model raises.
    """
    progress("operations of each module", 1, 1)
    model = workload.model
    counter = FlopCounterMode(display=False)

    def step(model: nn.Module, batch: Any) -> Any:
        with torch.no_grad(), counter:
            return workload.step(model, batch)

    device = choose_device(plan.device)
    with outside_autocast({"cpu", device.type}):
        run = run_pass(
            replace(workload, step=step), workload.batches[0], reference(device), plan.seed, Absent
        )
    if run.raised is not None or run.interrupted:
        return {}
    root = type(model).__name__
    counts = {name: sum(ops.values()) for name, ops in counter.get_flop_counts().items()}
    found = {n.removeprefix(f"{root}."): c for n, c in counts.items() if n.startswith(f"{root}.")}
    return {**found, "": counts.get("Global", 0)}


def share_of(flops: dict[str, int], paths: tuple[str, ...]) -> float | None:
    """The share of all FLOPs that these modules take, none inside another; None where none were counted."""
    total = flops.get("", 0)
    return sum(flops.get(path, 0) for path in paths) / total if total else None

"""A workload as it is after some training steps: to scan a step of a run as it is then."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import nn

from ampdoctor.errors import ProbeError, is_out_of_memory, memory_runs_out
from ampdoctor.facts.training import ScalerSettings
from ampdoctor.load.seeds import seed_everything
from ampdoctor.load.traceback import user_traceback
from ampdoctor.load.workload import Workload
from ampdoctor.probe.passes.alone import alone
from ampdoctor.probe.passes.device import choose_device, grad_scaler
from ampdoctor.probe.passes.isolation import isolated, refuse_without_values
from ampdoctor.probe.passes.one_pass import take_step
from ampdoctor.probe.passes.precision import candidate
from ampdoctor.probe.passes.stages import Progress, Stages
from ampdoctor.probe.plan import Plan
from ampdoctor.probe.watch.location import ModuleStack
from ampdoctor.probe.watch.unrecorded import Unrecorded

__ampdoctor_calls_user_code__ = True
"""The user's lines end at frames of this module; see ``watch.location``."""


def advanced(
    workload: Workload, plan: Plan, settings: ScalerSettings, steps: int, progress: Progress | None = None
) -> tuple[Workload, Plan]:
    """The workload and the plan as they are after ``steps`` steps, those of ``probe.train.train``.

    The model itself is changed: its weights and buffers are those of then. What else it remembers is not. The
    optimizer starts with the state it has then, a dynamic scaler with its scale, and the passes draw as that
    step does. Raises ProbeError where the run does not get there, LoadError where the user's code gives no
    optimizer.
    """
    stages = Stages(progress)
    with alone(), memory_runs_out(lambda: stages.doing("while training")):
        return _advanced(workload, plan, settings, steps, stages)


def _advanced(
    workload: Workload, plan: Plan, settings: ScalerSettings, steps: int, progress: Progress
) -> tuple[Workload, Plan]:
    model, build = workload.model, workload.build_optimizer
    if build is None:
        raise ValueError("a workload without an optimizer cannot train")
    device = choose_device(plan.device)
    refuse_without_values(model)
    precision, modules = candidate(plan, device, 1.0), ModuleStack(model)
    scaler = grad_scaler(device, settings) if plan.scaler != "none" else None
    with isolated(model, workload.batches, workload.step), precision.open(model), modules.watch():
        seed_everything(plan.seed)
        optimizer = build(model)
        for step in range(steps):
            progress(f"training, step {step}", step, steps)
            optimizer.zero_grad()
            seed_everything((plan.seed + step) % 2**32)
            at = replace(precision, loss_scale=scaler.get_scale() if scaler else 1.0)
            run = take_step(workload, workload.batches[step % len(workload.batches)], at, modules, Unrecorded)
            if run.interrupted:
                raise KeyboardInterrupt
            if run.raised is not None:
                raised = run.raised
                raise ProbeError(
                    f"step {step} is not reached: the model raises {raised.type}: {raised.message}",
                    f"scan it as it is then: --after-steps {step}",
                    raised.traceback,
                )
            _step(optimizer, scaler, step)
        values = {id(t): t.detach().clone() for t in (*model.parameters(), *model.buffers())}
        state = copy.deepcopy(optimizer.state_dict())
    with torch.no_grad():
        tensors = (*model.parameters(), *model.buffers())
        # All are brought over before the first is written: memory may run out on the way.
        for tensor, value in [(t, values[id(t)].to(t.device)) for t in tensors]:
            tensor.copy_(value)

    def build_then(of: nn.Module) -> torch.optim.Optimizer:
        again = build(of)
        again.load_state_dict(copy.deepcopy(state))
        return again

    scale = scaler.get_scale() if scaler and plan.scaler == "dynamic" else plan.loss_scale
    return (
        replace(workload, title=f"{workload.title}, step {steps}", build_optimizer=build_then),
        replace(plan, loss_scale=scale, seed=(plan.seed + steps) % 2**32),
    )


def _step(optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None, step: int) -> None:
    try:
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise ProbeError(
            f"step {step} cannot be taken: {type(error).__name__}: {error}",
            "steps are taken under torch's GradScaler, without a closure",
            user_traceback(error),
        ) from error

"""The same training steps in FP32: whether what goes wrong in low precision goes wrong there as well."""

from __future__ import annotations

import torch

from ampdoctor.errors import AmpDoctorError, is_out_of_memory
from ampdoctor.facts.training import PlainStep, PlainTraining
from ampdoctor.load.seeds import seed_everything
from ampdoctor.load.workload import Workload
from ampdoctor.probe.passes.device import choose_device
from ampdoctor.probe.passes.isolation import isolated
from ampdoctor.probe.passes.one_pass import take_step
from ampdoctor.probe.passes.precision import reference
from ampdoctor.probe.passes.stages import Progress
from ampdoctor.probe.plan import Plan
from ampdoctor.probe.watch.location import ModuleStack
from ampdoctor.probe.watch.unrecorded import Absent

__ampdoctor_calls_user_code__ = True
"""The user's lines end at frames of this module; see ``watch.location``."""


def fp32_training(workload: Workload, plan: Plan, steps: int, progress: Progress) -> PlainTraining:
    """``steps`` training steps in FP32 on a working copy, each with the batch and the seed it has elsewhere.

    A step whose gradients are not finite is not taken, as under a scaler. What raises ends it, and is told.
    Raises LoadError where the user's code gives no optimizer, KeyboardInterrupt for one that came meanwhile.
    """
    model, batches, build = workload.model, workload.batches, workload.build_optimizer
    if build is None:
        raise ValueError("a workload without an optimizer cannot train")
    precision = reference(choose_device(plan.device))
    modules = ModuleStack(model)
    taken: list[PlainStep] = []
    with isolated(model, batches, workload.step), precision.open(model), modules.watch():
        seed_everything(plan.seed)
        optimizer = build(model)
        held = [p for group in optimizer.param_groups for p in group["params"]]
        for step in range(steps):
            progress(f"the same in FP32, step {step}", step, steps)
            seed_everything((plan.seed + step) % 2**32)
            for parameter in model.parameters():
                parameter.grad = None
            run = take_step(workload, batches[step % len(batches)], precision, modules, Absent)
            if run.interrupted:
                raise KeyboardInterrupt
            if run.raised is not None:
                return PlainTraining(tuple(taken), f"step {step}: {run.raised.type}: {run.raised.message}")
            finite = all(bool(torch.isfinite(g).all()) for g in run.gradients.values())
            if finite:
                try:
                    optimizer.step()
                except AmpDoctorError:
                    raise
                except Exception as error:
                    if is_out_of_memory(error):
                        raise
                    return PlainTraining(tuple(taken), f"step {step}: {type(error).__name__}: {error}")
            sound = run.loss is None or bool(torch.isfinite(run.loss).all())
            sound &= finite and all(bool(torch.isfinite(p).all()) for p in held)
            taken.append(PlainStep(step % len(batches), None if run.loss is None else float(run.loss), sound))
    return PlainTraining(tuple(taken))

"""``train(...)``: training steps under torch's GradScaler, on a working copy, as a ScalerRun."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ampdoctor.errors import ProbeError, is_out_of_memory, memory_runs_out
from ampdoctor.facts.trace import Birth
from ampdoctor.facts.training import ScalerRun, ScalerSettings, StepRecord
from ampdoctor.load.seeds import seed_everything
from ampdoctor.load.traceback import user_traceback
from ampdoctor.load.workload import Workload
from ampdoctor.probe.births.bad_tensors import batch_size
from ampdoctor.probe.births.birth_facts import Seen, describe_births
from ampdoctor.probe.births.second_look import SecondLook
from ampdoctor.probe.passes.alone import alone
from ampdoctor.probe.passes.device import choose_device, grad_scaler
from ampdoctor.probe.passes.environment import environment_of
from ampdoctor.probe.passes.isolation import isolated, refuse_without_values, working_copy
from ampdoctor.probe.passes.one_pass import MakeObserver, Run, RunOf, Watch, take_step
from ampdoctor.probe.passes.precision import candidate
from ampdoctor.probe.passes.stages import Progress, Stages
from ampdoctor.probe.plan import Plan
from ampdoctor.probe.steps.fp32_training import fp32_training
from ampdoctor.probe.trials.overflow_scale import CeilingWatch, StepCeiling
from ampdoctor.probe.watch.location import ModuleStack

_LOWEST = -24
"""Exponent of the lowest loss scale that is tried: there a gradient of 1 is FP16's smallest number."""


def train(
    workload: Workload,
    plan: Plan,
    settings: ScalerSettings,
    steps: int,
    progress: Progress | None = None,
) -> ScalerRun:
    """What GradScaler does in ``steps`` steps of the workload's optimizer, cycling through its batches.

    Everything happens on a working copy. Each step draws from a seed of its own, so that it can be run again.
    Raises ConfigError for a device that is not there, LoadError where there is no loss or no optimizer,
    ProbeError where the model or the optimizer raises, memory runs out or another scan is running.
    Interrupted, it returns what it has. Where something goes wrong that is not the scale's start, the same
    steps are taken in FP32.
    """
    stages = Stages(progress)
    with alone(), memory_runs_out(lambda: stages.doing("while training")):
        found = _Training(workload, plan, settings, steps, stages).run()
        if found.interrupted or not _may_be_fp32s(found):
            return found
        try:
            return replace(found, beside=fp32_training(workload, plan, steps, stages))
        except KeyboardInterrupt:
            return replace(found, interrupted=True)


def _may_be_fp32s(run: ScalerRun) -> bool:
    """Something went wrong that FP32 might have as well: more than a scale that started too high."""
    taken = [s for s in run.steps if not s.skipped]
    later = any(s.skipped and taken and s.step > taken[0].step for s in run.steps)
    hopeless = any(s.ceiling is None or s.ceiling < 0 for s in run.steps)
    return bool(run.broken_weights) or later or hopeless


@dataclass
class _Training:
    workload: Workload
    plan: Plan
    settings: ScalerSettings
    requested: int
    progress: Progress
    records: list[StepRecord] = field(default_factory=list)
    refusal: str = ""
    broken_weights: tuple[str, ...] = ()
    interrupted: bool = False
    causes: dict[tuple[Any, ...], Birth | None] = field(default_factory=dict)
    """What a skipped step looks like from outside -> the birth that a second look at the first such one
    saw."""

    def run(self) -> ScalerRun:
        started = time.perf_counter()
        model = self.workload.model
        if self.workload.build_optimizer is None:
            raise ValueError("a workload without an optimizer cannot train")
        device = choose_device(self.plan.device)
        refuse_without_values(model)
        self.precision = candidate(self.plan, device, 1.0)
        self.modules = ModuleStack(model)
        with (
            isolated(model, self.workload.batches, self.workload.step),
            self.precision.open(model),
            self.modules.watch(),
        ):
            seed_everything(self.plan.seed)
            self.optimizer = self.workload.build_optimizer(model)
            trained = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
            self.trained = {n: p for n, p in model.named_parameters() if id(p) in trained}
            self.scaler = grad_scaler(device, self.settings)
            self._steps()
            dtypes = dict.fromkeys(str(p.dtype).removeprefix("torch.") for p in self.trained.values())
            return ScalerRun(
                environment=environment_of(self.workload, self.plan, device),
                optimizer=type(self.optimizer).__name__,
                parameter_dtypes=tuple(dtypes),
                settings=self.settings,
                requested=self.requested,
                steps=tuple(self.records),
                final_scale=self.scaler.get_scale(),
                refusal=self.refusal,
                broken_weights=self.broken_weights,
                seed=self.plan.seed,
                seconds=time.perf_counter() - started,
                interrupted=self.interrupted,
            )

    def _steps(self) -> None:
        for step in range(self.requested):
            self.progress(f"step {step}, loss scale {self.scaler.get_scale():,.6g}", step, self.requested)
            try:
                record = self._step(step)
            except KeyboardInterrupt:
                record = None
            if record is None:
                self.interrupted = not self.refusal
                return
            self.records.append(record)
            if self.broken_weights:
                return

    def _step(self, step: int) -> StepRecord | None:
        """One step; None where it was interrupted, or the scaler refused the gradients."""
        model = self.workload.model
        buffers = [b.detach().clone() for b in model.buffers()]
        scale = self.scaler.get_scale()
        self.optimizer.zero_grad()
        run = self._take(step, scale, CeilingWatch)
        self._refuse_failure(run, step)
        if run.interrupted:
            return None
        seen = run.observer.read(scale)
        bad = self._bad(run)
        if not self._unscaled():
            return None
        stepped = self._stepped()
        # A fused optimizer is called even so, and keeps its hands off the weights itself.
        skipped = bool(bad) or not stepped
        self.scaler.update()
        if not skipped:
            self.broken_weights = _non_finite(self.trained.items())
        again = _Again(self, step, buffers)
        return StepRecord(
            step=step,
            batch=self._batch(step),
            loss=None if run.loss is None else float(run.loss),
            scale=scale,
            skipped=skipped,
            ceiling=again.ceiling_below(scale) if skipped else _at_least(seen.ceiling, scale),
            bad_parameters=bad,
            cause=self._cause(again, run, seen, scale) if skipped else None,
        )

    def _batch(self, step: int) -> int:
        return step % len(self.workload.batches)

    def _take(self, step: int, scale: float, make: MakeObserver[Watch]) -> RunOf[Watch]:
        """Forward, loss and scaled backward of a step, from its own seed."""
        precision = replace(self.precision, loss_scale=scale)

        batch = self.workload.batches[self._batch(step)]
        seed_everything((self.plan.seed + step) % 2**32)
        return take_step(self.workload, batch, precision, self.modules, make)

    def _bad(self, run: Run) -> tuple[str, ...]:
        """The trained parameters whose gradient is not finite."""
        return _non_finite((n, g) for n, g in run.gradients.items() if n in self.trained)

    def _unscaled(self) -> bool:
        """True after GradScaler has divided the gradients; False where it refuses them."""
        try:
            self.scaler.unscale_(self.optimizer)
        except (ValueError, NotImplementedError) as error:
            # FP16 gradients everywhere; BF16 ones on CUDA, in versions whose kernel does not know them.
            self.refusal = str(error).splitlines()[0]
            return False
        return True

    def _stepped(self) -> bool:
        """Whether GradScaler let the optimizer step."""
        taken = []
        hook = self.optimizer.register_step_pre_hook(lambda *_: taken.append(True))
        try:
            self.scaler.step(self.optimizer)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            raise ProbeError(
                f"the optimizer's step raises: {type(error).__name__}: {error}",
                "GradScaler calls optimizer.step() without a closure",
                user_traceback(error),
            ) from error
        finally:
            hook.remove()
        return bool(taken)

    def _refuse_failure(self, run: Run, step: int) -> None:
        if run.raised is not None:
            raised = run.raised
            raise ProbeError(
                f"the model raises in step {step}: {raised.type}: {raised.message}",
                "`ampdoctor scan` finds out whether FP32 does as well",
                raised.traceback,
            )
        if not run.interrupted and not any(name in self.trained for name in run.gradients):
            raise ProbeError(
                f"no parameter of the optimizer gets a gradient in step {step}",
                "does the loss depend on them, and are they the model's own?",
            )

    def _cause(self, again: _Again, run: Run, seen: StepCeiling, scale: float) -> Birth | None:
        """The birth behind a skip. Skips that look the same from outside are looked into once."""
        sound = run.loss is not None and bool(torch.isfinite(run.loss).all())
        looks = (sound, seen.broken, self._bad(run))
        if looks not in self.causes:
            self.causes[looks] = again.cause(scale)
        return self.causes[looks]


@dataclass
class _Again:
    """Runs a step again from where it began. The training goes on as if it had not."""

    training: _Training
    step: int
    buffers: list[Tensor]
    """As they were before the step."""

    def take(self, scale: float, make: MakeObserver[Watch]) -> RunOf[Watch]:
        """The step's forward and backward at another loss scale."""
        training = self.training
        model, batch = training.workload.model, training.workload.batches[training._batch(self.step)]
        step = training.workload.step
        with isolated(model, batch, step), working_copy(model, training.precision.device, lambda t: t.dtype):
            for buffer, before in zip(model.buffers(), self.buffers, strict=True):
                buffer.copy_(before)
            return training._take(self.step, scale, make)

    def ceiling_below(self, scale: float) -> int | None:
        """The exponent of the largest loss scale at which the step is finite, given that ``scale`` is not."""
        if scale <= 0:
            return None
        bad = math.ceil(math.log2(scale))
        for good in (0, _LOWEST):
            if good < bad and (predicted := self._predicted(good)) is not None:
                break
        else:
            return None
        while bad - good > 1:
            if predicted <= good:
                return good
            trial = min(predicted, bad - 1)
            found = self._predicted(trial)
            if found is None:
                bad = trial
            else:
                good, predicted = trial, found
        return good

    def _predicted(self, exponent: int) -> int | None:
        """The ceiling as the step's tensors at 2^exponent predict it; None where it is not finite there."""
        scale = math.ldexp(1.0, exponent)
        run = self.take(scale, CeilingWatch)
        if run.interrupted:
            raise KeyboardInterrupt
        if run.raised is not None or not run.backward_ran or self.training._bad(run):
            return None
        return _at_least(run.observer.read(scale).ceiling, scale)

    def cause(self, scale: float) -> Birth | None:
        """The first birth that reaches a gradient."""
        run = self.take(scale, SecondLook)
        if run.interrupted:
            raise KeyboardInterrupt
        look = run.observer
        batch = self.training._batch(self.step)
        size = batch_size(self.training.workload.batches[batch])
        births = describe_births([Seen(look, batch, size, scale, look.births)], {}, None)
        reaching = [b for b in births if b.reaches_gradients or b.reaches_loss]
        return min(reaching, key=lambda b: (b.origin == "declared", b.order), default=None)


def _at_least(ceiling: int, scale: float) -> int:
    """The ceiling of a step that is finite at ``scale``, as predicted from there.

    A tensor may overflow and reach no gradient: what was seen counts for more than what is predicted.
    """
    return max(ceiling, math.floor(math.log2(scale)))


def _non_finite(tensors: Iterable[tuple[str, Tensor]]) -> tuple[str, ...]:
    return tuple(name for name, tensor in tensors if not bool(torch.isfinite(tensor).all()))

"""The optimizer's steps, next to the same on FP32 weights: what rounding, or its own casts, leave of them."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ampdoctor.facts.trace import Birth, OptimizerStep
from ampdoctor.facts.updates import ParameterUpdate, StepLoss, UpdatePart
from ampdoctor.load.seeds import generators_of, seed_everything, states
from ampdoctor.load.workload import Workload
from ampdoctor.probe.births.birth_facts import Seen, describe_births
from ampdoctor.probe.births.second_look import SecondLook
from ampdoctor.probe.passes.isolation import isolated
from ampdoctor.probe.passes.one_pass import take_step
from ampdoctor.probe.passes.precision import Precision, candidate, reference
from ampdoctor.probe.passes.stages import Progress
from ampdoctor.probe.plan import Plan
from ampdoctor.probe.steps.fp32_training import fp32_training
from ampdoctor.probe.steps.optimizer_lane import Lane, NoStep, all_finite, spacing_of, wider
from ampdoctor.probe.watch.location import ModuleStack, source_of
from ampdoctor.probe.watch.locator import Locator
from ampdoctor.probe.watch.observer import Observer
from ampdoctor.probe.watch.own_casts import CastsWidened, OwnCasts
from ampdoctor.probe.watch.parameter_writes import ParameterWrites
from ampdoctor.probe.watch.unrecorded import Unrecorded
from ampdoctor.scales.powers_of_two import LOW_PRECISION

_SETTLED = 5
"""The last one in this many steps is counted: Adam's first update is always its learning rate, whatever the
gradient, and it takes some steps to shrink to what it will be."""
_SHOW_CASTS = 2
"""An optimizer that casts nothing to 16 bits in so many steps, the second with a state, never does."""


def optimizer_steps(
    workload: Workload, plan: Plan, device: torch.device, progress: Progress | None = None
) -> OptimizerStep | None:
    """What ``plan.optimizer_steps`` steps do; None without an optimizer, and where nothing in them rounds.

    The model runs in the candidate's precision. Its gradients step its weights, and FP32 copies of these by
    an optimizer of their own: what only the copies get, rounding swallowed. FP32 weights lose an update only
    where the optimizer itself casts to 16 bits: their copies are stepped without these casts. The gradients
    are divided by the loss scale where they lie, in their own dtype. Raises LoadError where the user's code
    gives no optimizer, KeyboardInterrupt for one that came while the model ran.
    """
    if workload.build_optimizer is None or workload.forward_only:
        return None
    precision = candidate(plan, device, plan.loss_scale)
    trained = [p for p in workload.model.parameters() if p.requires_grad and p.is_floating_point()]
    rounds = any(_name(precision.weight_dtype(p.dtype)) in LOW_PRECISION for p in trained)
    if not trained:
        return None
    steps = _Steps(workload, plan, precision, rounds, progress or (lambda *_: None))
    try:
        steps.run()
    except NoStep as reason:
        # With FP32 weights: no gradients, or bad ones. That is the scan's to tell, not the optimizer's.
        return OptimizerStep("", None, plan.loss_scale, (), None, failure=str(reason)) if rounds else None
    if not rounds and steps.casts.dtype is None:
        return None
    facts = steps.facts()
    if any(u.nan or u.inf for u in facts.updates):
        facts = _destroyed(steps, facts)
    return facts


@dataclass
class _Steps:
    """The steps, and what was counted of them."""

    workload: Workload
    plan: Plan
    precision: Precision
    rounds: bool
    """The weights themselves are in low precision."""
    progress: Progress
    look_at: int | None = None
    """The step that a second look follows; the last one taken then."""
    counts: list[dict[str, tuple[int, int]]] = field(default_factory=list)
    """Of each step: parameter -> elements that move, and those of them that stay here."""
    bad: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Parameter -> elements that the last step made NaN, and inf."""
    writes: tuple[ParameterWrites, ParameterWrites] | None = None
    """What one step writes to each parameter, here and in FP32."""
    start: dict[str, Tensor] = field(default_factory=dict)
    moved: dict[str, Tensor] = field(default_factory=dict)
    """Of the last step: the elements of each parameter that move..."""
    before: tuple[dict[str, Tensor], dict[str, Tensor]] = ({}, {})
    """...and the weights before it, here and in FP32."""
    stopped: str = ""
    draws: bool = False
    look: SecondLook | None = None

    def run(self) -> None:
        """Takes the steps. Raises NoStep where the first cannot be taken, or the optimizer raises."""
        model, batches = self.workload.model, self.workload.batches
        self.modules = ModuleStack(model)
        build = self.workload.build_optimizer
        assert build is not None
        with isolated(model, batches, self.workload.step), self.precision.open(model), self.modules.watch():
            self.locator = Locator(self.modules, {}, "optimizer")
            self.exact_precision = reference(self.precision.device)
            self.casts = OwnCasts(self.locator, self.precision)
            seed_everything(self.plan.seed)
            self.low = Lane(model, build)
            seed_everything(self.plan.seed)
            self.exact = Lane(model, build, wide=True, watch=self._without_casts())
            self.start = {n: t.clone() for n, t in self.low.data.items()}
            for step in range(self.plan.optimizer_steps):
                self.progress(f"optimizer step {step}", step, self.plan.optimizer_steps)
                gradients = self._gradients(step)
                if gradients is None or not self._step(step, gradients):
                    return
                if not self.rounds and step + 1 == _SHOW_CASTS and not self.casts.casts:
                    return

    def _gradients(self, step: int) -> dict[str, Tensor] | None:
        """The candidate's gradients, still scaled; None where they end the steps. NoStep in the first."""
        batch = self.workload.batches[step % len(self.workload.batches)]
        while True:
            self.low.place()
            seed_everything((self.plan.seed + step) % 2**32)
            run = take_step(self.workload, batch, self.precision, self.modules, Unrecorded)
            if run.interrupted:
                raise KeyboardInterrupt
            sound = all_finite(list(run.gradients.values()))
            if sound or self.plan.scaler != "dynamic" or self.precision.loss_scale <= 1.0:
                break
            # A scaler would skip the step, and find the scale that this batch bears.
            self.precision = replace(self.precision, loss_scale=self.precision.loss_scale / 2)
        gradients = {n: p.grad for n, p in self.low.parameters.items() if p.grad is not None}
        why = ""
        if run.raised is not None or not gradients:
            why = "gives no gradients"
        elif not sound:
            why = "gives gradients that are not finite"
        if not why:
            return gradients
        if step == 0:
            raise NoStep(f"the {_name(self.precision.dtype)} pass {why}")
        self.stopped = f"step {step} {why}"
        return None

    def _step(self, step: int, gradients: dict[str, Tensor]) -> bool:
        """Both optimizers step, and are compared. False where that ends the steps."""
        scale = self.precision.loss_scale
        exact_gradients = {n: g.to(wider(g.dtype), copy=True) / scale for n, g in gradients.items()}
        if scale != 1.0:
            for gradient in gradients.values():
                gradient.div_(scale)
        self.before = _copies(self.low), _copies(self.exact)
        watch, exact_watch = self._watches(step)
        generators = _generators(self.precision.device)
        self.low.step(gradients, watch, "")
        self.draws |= not torch.equal(generators, _generators(self.precision.device))
        self.exact.step(exact_gradients, exact_watch, ", on FP32 weights,")
        return self._count(step, gradients)

    def _watches(self, step: int) -> tuple[Observer, AbstractContextManager[Any]]:
        """What looks on while each optimizer steps."""
        if step == self.look_at:
            self.look = SecondLook(self.locator, self.precision)
            return self.look, nullcontext()
        if not self.rounds:
            return self.casts, self._without_casts()
        if step == min(1, self.plan.optimizer_steps - 1):  # The second: the state is there.
            self.writes = (
                ParameterWrites(self.locator, self.precision, self.low.data),
                ParameterWrites(self.locator, self.exact_precision, self.exact.data),
            )
            return self.writes
        return Unrecorded(self.locator, self.precision), nullcontext()

    def _without_casts(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.rounds else CastsWidened(self.locator, self.precision)

    def _count(self, step: int, gradients: dict[str, Tensor]) -> bool:
        """Counts the step. False where some weights are not finite any more."""
        counted, self.moved, self.bad = {}, {}, {}
        sound = True
        seen: dict[str, Tensor] = {}
        for name in gradients:
            before, after = self.before[0][name], self.low.data[name]
            exact_before, exact = self.before[1][name], self.exact.data[name]
            finite = torch.isfinite(exact)
            moves = finite & (exact != exact_before)
            broken = finite & torch.isfinite(before) & ~torch.isfinite(after)
            masks = (moves, moves & (before == after), broken & torch.isnan(after), broken, ~finite)
            seen[name] = torch.stack([mask.sum() for mask in masks])
            self.moved[name] = moves
        # The host waits once a step.
        table = torch.stack([t.to(self.precision.device) for t in seen.values()]).tolist() if seen else []
        for name, numbers in zip(seen, table, strict=True):
            if not self.low.holds(name) and not numbers[0]:
                del self.moved[name]
                continue
            counted[name] = numbers[0], numbers[1]
            if numbers[3]:
                self.bad[name] = numbers[2], numbers[3] - numbers[2]
            sound &= not numbers[3] and not numbers[4]
        self.counts.append(counted)
        if not sound and not self.bad:
            self.stopped = f"step {step} leaves FP32 weights that are not finite"
        return sound and step != self.look_at

    # -- the facts

    def facts(self) -> OptimizerStep:
        """What was counted, without tensors."""
        source = self.low.source if self.rounds else source_of(self.casts.line)
        dtype = self.casts.dtype
        window = max(1, len(self.counts) // _SETTLED)
        names = list(dict.fromkeys(name for counted in self.counts[-window:] for name in counted))
        stepped = (list(counted.values()) for counted in self.counts)
        return OptimizerStep(
            optimizer=self.low.name,
            source=source,
            loss_scale=self.plan.loss_scale,
            updates=tuple(self._update(name, window) for name in names),
            birth=None,
            casts_to="" if self.rounds or dtype is None else _name(dtype),
            by_step=tuple(StepLoss(sum(m for m, _ in pairs), sum(s for _, s in pairs)) for pairs in stepped),
            window=window,
            stopped=self.stopped,
            draws=self.draws,
        )

    def _update(self, name: str, window: int) -> ParameterUpdate:
        low, exact, start = self.low.data[name], self.exact.data[name], self.start[name]
        counts = [counted[name] for counted in self.counts if name in counted]
        last = [counted[name] for counted in self.counts[-window:] if name in counted]
        moved, swallowed = sum(m for m, _ in last), sum(s for _, s in last)
        way, ours = (exact - start).double(), (low.to(exact.dtype) - start).double()
        travelled = float(torch.linalg.vector_norm(way))
        sound = math.isfinite(travelled) and travelled > 0 and all_finite([ours])
        moves = self.moved.get(name)
        change = (exact - self.before[1][name]).abs()
        nan, inf = self.bad.get(name, (0, 0))
        return ParameterUpdate(
            name=name,
            numel=low.numel(),
            dtype=_name(low.dtype),
            moved=moved,
            swallowed=swallowed,
            nan=nan,
            inf=inf,
            update=None if moves is None else _median(change[moves]),
            spacing=None if moves is None else _median(spacing_of(self.before[0][name])[moves]),
            eps=_number(self.low.eps.get(id(self.low.parameters[name]))),
            travelled=travelled if math.isfinite(travelled) else None,
            arrived=float((way * ours).sum()) / travelled**2 if sound else None,
            never_moves=any(m for m, _ in counts) and torch.equal(low, start) and _all_stay(counts, low),
            carried=self.rounds and 2 * swallowed > moved and self.low.carries(name, exact),
            parts=self._parts(name),
        )

    def _parts(self, name: str) -> tuple[UpdatePart, ...]:
        """The writes of the step that was looked at, where both optimizers made the same several."""
        ours, exact = ([], []) if self.writes is None else (w.writes.get(name, []) for w in self.writes)
        if len(ours) < 2 or [w.op for w in ours] != [w.op for w in exact]:
            return ()
        return tuple(
            UpdatePart(
                theirs.op, source_of(own.line), int(theirs.changes.sum()),
                int((theirs.changes & ~own.changes).sum()), theirs.proportional,
            )
            for own, theirs in zip(ours, exact, strict=True)
        )  # fmt: skip


def _destroyed(steps: _Steps, facts: OptimizerStep) -> OptimizerStep:
    """The facts of steps that destroyed weights, with the op that did, and whether FP32 training does."""
    last = len(steps.counts) - 1
    again = replace(
        steps, look_at=last, counts=[], bad={}, writes=None, start={}, moved={}, before=({}, {}), stopped=""
    )
    again.run()
    birth: Birth | None = None
    if again.look is not None:
        batch = last % len(steps.workload.batches)
        seen = Seen(again.look, batch, None, steps.plan.loss_scale, again.look.births)
        birth = next((b for b in describe_births([seen], {}, None) if b.origin == "op"), None)
    diverges = None
    if last > 0:
        beside = fp32_training(steps.workload, steps.plan, steps.plan.optimizer_steps, steps.progress)
        diverges = beside.diverges_at
    return replace(facts, birth=birth, fp32_diverges_at=diverges)


def _all_stay(counts: list[tuple[int, int]], weight: Tensor) -> bool:
    return all(moved == swallowed for moved, swallowed in counts) and bool(torch.isfinite(weight).all())


def _generators(device: torch.device) -> Tensor:
    """The state of torch's generators that an op on this device may draw from."""
    return torch.cat([state for _, state in states(generators_of(device))])


def _copies(lane: Lane) -> dict[str, Tensor]:
    return {n: t.clone() for n, t in lane.data.items()}


def _median(values: Tensor) -> float | None:
    return float(values.double().median()) if values.numel() else None


def _number(eps: Any) -> float | None:
    return float(eps) if isinstance(eps, (int, float)) else None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

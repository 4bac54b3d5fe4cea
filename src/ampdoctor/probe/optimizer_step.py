"""The optimizer's first step, next to FP32's: what rounding, or a cast of its own, leaves of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ampdoctor.errors import AmpDoctorError, is_out_of_memory
from ampdoctor.facts.floats import FLOAT_FORMATS, FloatFormat
from ampdoctor.facts.site import Source
from ampdoctor.facts.trace import OptimizerStep, ParameterUpdate
from ampdoctor.load.seeds import seed_everything
from ampdoctor.load.workload import Workload
from ampdoctor.probe.births.birth_facts import Seen, describe_births
from ampdoctor.probe.births.second_look import SecondLook
from ampdoctor.probe.passes.isolation import isolated
from ampdoctor.probe.passes.one_pass import MakeObserver, take_step
from ampdoctor.probe.passes.precision import Precision, candidate, reference
from ampdoctor.probe.plan import Plan
from ampdoctor.probe.watch.location import ModuleStack, line_that_makes, source_of
from ampdoctor.probe.watch.locator import Locator
from ampdoctor.probe.watch.observer import Observer
from ampdoctor.probe.watch.own_casts import CastsWidened, OwnCasts
from ampdoctor.probe.watch.unrecorded import Unrecorded
from ampdoctor.scales.powers_of_two import LOW_PRECISION

__ampdoctor_calls_user_code__ = True
"""The user's lines end at frames of this module; see ``watch.location``."""


def first_step(workload: Workload, plan: Plan, device: torch.device) -> OptimizerStep | None:
    """What one step on the first batch does; None without an optimizer, and where nothing in it rounds.

    Low-precision weights are compared with an FP32 step. FP32 weights lose an update only where the optimizer
    itself casts to 16 bits: that step is compared with one from the same gradients with those casts in FP32.
    The gradients are divided by the loss scale where they lie, in their own dtype. Raises LoadError where the
    user's code gives no optimizer.
    """
    if workload.build_optimizer is None or workload.forward_only:
        return None
    precision = candidate(plan, device, plan.loss_scale)
    trained = [p for p in workload.model.parameters() if p.requires_grad and p.is_floating_point()]
    if not any(_name(precision.weight_dtype(p.dtype)) in LOW_PRECISION for p in trained):
        return _casts_inside(workload, precision, plan) if trained else None
    look = None
    try:
        low = _take(workload, precision, plan.seed, Unrecorded)
        exact = _take(workload, reference(device), plan.seed, Unrecorded)
        if any(not bool(torch.isfinite(after).all()) for after in low.after.values()):
            look = _take(workload, precision, plan.seed, SecondLook).observer
    except _NoStep as reason:
        return OptimizerStep("", None, plan.loss_scale, (), None, failure=str(reason))
    births = []
    if isinstance(look, SecondLook):
        births = describe_births([Seen(look, 0, None, plan.loss_scale, look.births)], {}, None)
    return OptimizerStep(
        optimizer=low.optimizer,
        source=low.source,
        loss_scale=plan.loss_scale,
        updates=tuple(_update(name, low, exact) for name in low.before if name in exact.before),
        birth=next((b for b in births if b.origin == "op"), None),
    )


def _casts_inside(workload: Workload, precision: Precision, plan: Plan) -> OptimizerStep | None:
    """The step on FP32 weights; None where the optimizer makes no value zero by a cast of its own."""
    try:
        written = _take(workload, precision, plan.seed, OwnCasts)
        casts = written.observer
        assert isinstance(casts, OwnCasts)
        if casts.dtype is None:
            return None
        wide = _take(workload, precision, plan.seed, CastsWidened)
    except _NoStep:
        return None  # backward has no gradients, or bad ones: that is the scan's to tell, not the optimizer's
    return OptimizerStep(
        optimizer=written.optimizer,
        source=source_of(casts.line),
        loss_scale=plan.loss_scale,
        updates=tuple(_update(name, written, wide) for name in written.before),
        birth=None,
        casts_to=_name(casts.dtype),
    )


class _NoStep(Exception):
    """No step could be taken; the message says why."""


@dataclass
class _Step:
    """What a step left behind."""

    optimizer: str
    source: Source | None
    observer: Observer
    before: dict[str, Tensor] = field(default_factory=dict)
    """The parameters with a gradient that the optimizer holds."""
    after: dict[str, Tensor] = field(default_factory=dict)
    eps: dict[str, float | None] = field(default_factory=dict)


def _take(workload: Workload, precision: Precision, seed: int, watch: MakeObserver) -> _Step:
    """Forward and backward of the first batch, unwatched; then the optimizer's step, watched."""
    model, batch = workload.model, workload.batches[0]
    modules = ModuleStack(model)
    with isolated(model, batch, workload.step), precision.open(model), modules.watch():
        seed_everything(seed)
        run = take_step(workload, batch, precision, modules, Unrecorded)
        if run.interrupted:
            raise KeyboardInterrupt
        role = "FP32" if precision.is_reference else f"{_name(precision.dtype)}"
        if run.raised is not None or not run.gradients:
            raise _NoStep(f"the {role} pass gives no gradients")
        if not all(bool(torch.isfinite(g).all()) for g in run.gradients.values()):
            raise _NoStep(f"the {role} pass gives gradients that are not finite")
        assert workload.build_optimizer is not None
        with _makers() as makers:
            optimizer = workload.build_optimizer(model)
        for parameter in model.parameters():
            if parameter.grad is not None and precision.loss_scale != 1.0:
                parameter.grad.div_(precision.loss_scale)
        observer = watch(Locator(modules, {}, "optimizer"), precision)
        step = _Step(type(optimizer).__name__, makers.get(id(optimizer)), observer)
        eps = {id(p): group.get("eps") for group in optimizer.param_groups for p in group["params"]}
        held = {n: p for n, p in model.named_parameters() if id(p) in eps and p.grad is not None}
        step.before = {name: p.detach().clone() for name, p in held.items()}
        step.eps = {name: _number(eps[id(p)]) for name, p in held.items()}
        _call(optimizer, observer)
        step.after = {name: p.detach().clone() for name, p in held.items()}
    return step


def _call(optimizer: torch.optim.Optimizer, observer: Observer) -> None:
    try:
        with observer:
            optimizer.step()
    except AmpDoctorError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        # Of the user's optimizer, or torch's refusal of these dtypes: the rest of the scan still stands.
        raise _NoStep(f"{type(optimizer).__name__}.step() raises {type(error).__name__}: {error}") from error


@contextmanager
def _makers() -> Iterator[dict[int, Source | None]]:
    """id() of every optimizer made while open -> the user's line that makes it."""
    found: dict[int, Source | None] = {}
    original: Callable[..., None] = torch.optim.Optimizer.__init__

    def init(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        found[id(optimizer)] = source_of(line_that_makes(optimizer))
        original(optimizer, *args, **kwargs)

    torch.optim.Optimizer.__init__ = init  # type: ignore[assignment, method-assign]
    try:
        yield found
    finally:
        torch.optim.Optimizer.__init__ = original  # type: ignore[method-assign]


def _update(name: str, low: _Step, exact: _Step) -> ParameterUpdate:
    """One parameter's update, counted where the reference's changes something."""
    before, after = low.before[name], low.after[name]
    change = (exact.after[name] - exact.before[name]).abs()
    sound = torch.isfinite(change)
    moves = sound & (change > 0)
    stays = before == after
    broken = sound & torch.isfinite(before) & ~torch.isfinite(after)
    fmt = FLOAT_FORMATS[_name(before.dtype)]
    return ParameterUpdate(
        name=name,
        numel=before.numel(),
        dtype=fmt.name,
        moved=int(moves.sum()),
        swallowed=int((moves & stays).sum()),
        nan=int((broken & torch.isnan(after)).sum()),
        inf=int((broken & torch.isinf(after)).sum()),
        update=_median(change[moves]),
        spacing=_median(_spacing(before.float()[moves], fmt)),
        eps=low.eps[name],
    )


def _spacing(values: Tensor, fmt: FloatFormat) -> Tensor:
    """The distance from each value to the next larger magnitude of the format."""
    _, exponents = torch.frexp(values)  # |x| = f * 2^e with 1/2 <= f < 1
    steps = torch.ldexp(torch.ones_like(values), exponents - 1 - fmt.mantissa_bits)
    steps = torch.where(values == 0, torch.zeros_like(steps), steps)  # frexp gives zero the exponent of 1/2
    return steps.clamp(min=fmt.min_subnormal)


def _median(values: Tensor) -> float | None:
    return float(values.double().median()) if values.numel() else None


def _number(eps: Any) -> float | None:
    return float(eps) if isinstance(eps, (int, float)) else None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

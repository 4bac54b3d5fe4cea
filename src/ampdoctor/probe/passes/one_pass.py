"""One pass: forward, loss, scaled backward, under an observer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from ampdoctor.errors import AmpDoctorError, OutOfMemoryInPass, is_out_of_memory
from ampdoctor.facts.trace import Raised
from ampdoctor.facts.words import Phase
from ampdoctor.load.seeds import seed_everything
from ampdoctor.load.traceback import message_of, passed_as, user_traceback
from ampdoctor.load.workload import Workload
from ampdoctor.probe.cuda.on_cpu import EmulatedRefusal, place
from ampdoctor.probe.passes.buffers import floating_buffers, written_buffers
from ampdoctor.probe.passes.isolation import (
    batch_copy,
    dense_gradients,
    isolated,
    map_floating,
    named_tensors,
)
from ampdoctor.probe.passes.precision import Precision
from ampdoctor.probe.watch.location import ModuleStack, line_of_exception, source_of
from ampdoctor.probe.watch.locator import Locator
from ampdoctor.probe.watch.nonfinite import has_nonfinite
from ampdoctor.probe.watch.observer import Observer
from ampdoctor.probe.watch.user_functions import watched_functions

__ampdoctor_calls_user_code__ = True
"""The user's lines end at frames of this module; see ``watch.location``."""

Watch = TypeVar("Watch", bound=Observer, covariant=True)
MakeObserver = Callable[[Locator, Precision], Watch]
"""Mostly an observer's class."""


@dataclass
class RunOf(Generic[Watch]):
    """What one pass left behind, tensors included, and the observer that saw it."""

    precision: Precision
    observer: Watch
    modules: ModuleStack
    loss: Tensor | None = None
    """The unscaled loss, detached; None where there is none."""
    outputs: tuple[Tensor, ...] = ()
    """The model's output tensors, in a forward-only pass: they stand in the loss's place."""
    raised: Raised | None = None
    raised_as_written: Raised | None = None
    """Of a pass that widens the model's casts: what it raised without."""
    backward_ran: bool = False
    interrupted: bool = False
    buffers: dict[str, Tensor] = field(default_factory=dict)
    """Copies of the floating-point buffers as the pass left them."""
    written: frozenset[str] = frozenset()
    """Those that it wrote to."""
    gradients: dict[str, Tensor] = field(default_factory=dict)
    """Scaled gradients by parameter name, dense."""
    seconds: float = 0.0
    graph: Tensor | None = None
    """The loss with its graph, of a pass that is kept for another backward."""

    @property
    def results(self) -> tuple[Tensor, ...]:
        """Its loss, or its outputs in a forward-only pass; () where it got to neither."""
        return self.outputs if self.loss is None else (self.loss,)


Run = RunOf[Observer]
"""A pass, whoever watched it."""


def run_pass(
    workload: Workload,
    batch: Any,
    precision: Precision,
    seed: int,
    make_observer: MakeObserver[Watch],
    lower_scales: Sequence[float] = (),
) -> RunOf[Watch]:
    """One forward and backward of ``batch``. An exception of the model's is returned, not raised.

    ``lower_scales``: backward is run again on the same forward at these, in this order, while the gradients
    are not finite; the run's precision then has the scale that came last. Raises LoadError where the model
    gives no loss, ProbeError out of memory.
    """
    model = workload.model
    modules = ModuleStack(model)
    started = time.perf_counter()
    with isolated(model, batch, workload.step), precision.open(model), modules.watch():
        seed_everything(seed)
        run = take_step(workload, batch, precision, modules, make_observer, lower_scales)
    run.seconds = time.perf_counter() - started
    return run


def take_step(
    workload: Workload,
    batch: Any,
    precision: Precision,
    modules: ModuleStack,
    make_observer: MakeObserver[Watch],
    lower_scales: Sequence[float] = (),
    keep: bool = False,
) -> RunOf[Watch]:
    """The same, where precision and module stack are open already and the generators seeded.

    Gradients stay where backward left them. With ``keep`` backward can be run on the same graph once more.
    """
    model = workload.model
    locator = Locator(modules, {id(p): (n, n.rpartition(".")[0]) for n, p in model.named_parameters()})
    observer = make_observer(locator, precision)
    run = RunOf(precision, observer, modules)
    data = batch_copy(batch, precision.device)
    if precision.emulates_cuda:
        batch_tensors = (tensor for _, tensor in named_tensors(data))
        place((*model.parameters(), *model.buffers(), *batch_tensors))
    buffers = floating_buffers(model)
    observer.begin(model, data)
    try:
        told = observer.returned if observer.watches_functions else None
        with torch.set_grad_enabled(not workload.forward_only), watched_functions(told):
            _step(workload, data, run, lower_scales, keep)
    except AmpDoctorError:
        raise
    except KeyboardInterrupt:
        run.interrupted = True
    except (Exception, SystemExit) as error:
        if is_out_of_memory(error):
            raise OutOfMemoryInPass(f"in {locator.phase} of the {precision.role} pass", error) from error
        run.raised = _raised(error, run, locator.phase)
    run.gradients = dense_gradients(model)
    run.buffers = floating_buffers(model)
    run.written = written_buffers(run.buffers, buffers)
    observer.end(model, run.results)
    return run


def _step(workload: Workload, data: Any, run: Run, lower_scales: Sequence[float], keep: bool) -> None:
    precision = run.precision
    with run.observer:
        if precision.casts_weights and not precision.wide_loss:
            # Observed: a batch value that the dtype cannot hold becomes inf right here.
            data = map_floating(data, precision.cast_input)
        with precision.autocast():
            result = workload.step(workload.model, data)
        if workload.forward_only:
            run.outputs = tuple(tensor for _, tensor in named_tensors(result))
            return
        run.loss = result.detach()
        if not result.requires_grad:
            return
        run.observer.begin_backward()
        scales = [precision.loss_scale, *lower_scales]
        # Asked only where it matters: the host waits for the device.
        if lower_scales and not bool(torch.isfinite(run.loss).all()):
            scales = scales[:1]
        for left, scale in zip(range(len(scales) - 1, -1, -1), scales, strict=True):
            backward_at(scale, result, run, retain_graph=keep or left > 0)
            if not left or _finite_gradients(workload.model):
                break
            for parameter in workload.model.parameters():
                parameter.grad = None
        run.backward_ran = True
        run.graph = result if keep else None


def backward_at(loss_scale: float, loss: Tensor, run: Run, retain_graph: bool) -> None:
    """Nothing; one backward at this scale, which the run's precision has then."""
    # As GradScaler does: a float32 scale times the loss, then backward outside autocast. The scale is on the
    # host, where a kernel takes it from: a copy to the device would be waited for.
    scaled = loss * torch.tensor(loss_scale, dtype=torch.float32, device="cpu")
    scaled.backward(retain_graph=retain_graph)
    run.precision = replace(run.precision, loss_scale=loss_scale)


def _finite_gradients(model: nn.Module) -> bool:
    return not any(map(has_nonfinite, dense_gradients(model).values()))


def _raised(error: BaseException, run: Run, phase: Phase) -> Raised:
    observer = run.observer
    in_op = observer.failed is not None and observer.failed[0] is error
    op = constant = place = None
    if in_op and observer.failed is not None:
        _, op, place, constant = observer.failed
    line = line_of_exception(error)
    if phase == "backward" or line is None:
        line = (place.line if place is not None else None) or line
    module = place.module if place is not None else run.modules.module_of_exception(error)
    holds = constant is not None and "without overflow" in message_of(error)
    return Raised(
        type(error).__name__,
        message_of(error),
        phase,
        module,
        op or "",
        source_of(line),
        isinstance(error, EmulatedRefusal),
        constant if holds else None,
        user_traceback(error),
        passed_as(error),
    )

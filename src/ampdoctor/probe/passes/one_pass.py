"""One pass: forward, loss, scaled backward, under an observer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ampdoctor.errors import AmpDoctorError, ProbeError
from ampdoctor.facts.trace import Raised
from ampdoctor.load.traceback import message_of, user_traceback
from ampdoctor.load.workload import Workload
from ampdoctor.probe.births.second_look import SecondLook
from ampdoctor.probe.cuda.on_cpu import EmulatedRefusal
from ampdoctor.probe.passes.isolation import batch_copy, isolated, map_floating, named_tensors, seeded
from ampdoctor.probe.passes.precision import Precision
from ampdoctor.probe.watch.location import ModuleStack, line_of_exception, source_of
from ampdoctor.probe.watch.locator import Locator
from ampdoctor.probe.watch.observer import Observer

__ampdoctor_calls_user_code__ = True
"""The user's lines end at frames of this module; see ``watch.location``."""

MakeObserver = Callable[[Locator], Observer]


@dataclass
class Run:
    """What one pass left behind, tensors included."""

    precision: Precision
    observer: Observer
    modules: ModuleStack
    loss: Tensor | None = None
    """The unscaled loss, detached; None where there is none."""
    outputs: tuple[Tensor, ...] = ()
    """The model's output tensors, in a forward-only pass: they stand in the loss's place."""
    raised: Raised | None = None
    backward_ran: bool = False
    interrupted: bool = False
    gradients: dict[str, Tensor] = field(default_factory=dict)
    """Scaled gradients by parameter name, dense."""
    seconds: float = 0.0


def run_pass(
    workload: Workload, batch: Any, precision: Precision, seed: int, make_observer: MakeObserver
) -> Run:
    """One forward and backward of ``batch``. An exception of the model's is returned, not raised.

    Raises LoadError where the model gives no loss, ProbeError out of memory.
    """
    model = workload.model
    modules = ModuleStack(model)
    started = time.perf_counter()
    with isolated(model, batch), precision.open(model), modules.watch(), seeded(seed):
        run = take_step(workload, batch, precision, modules, make_observer)
    run.seconds = time.perf_counter() - started
    return run


def take_step(
    workload: Workload, batch: Any, precision: Precision, modules: ModuleStack, make_observer: MakeObserver
) -> Run:
    """The same, where precision and module stack are open already and the generators seeded.

    Gradients stay where backward left them.
    """
    model = workload.model
    locator = Locator(modules, {id(p): (n, n.rpartition(".")[0]) for n, p in model.named_parameters()})
    observer = make_observer(locator)
    run = Run(precision, observer, modules)
    data = batch_copy(batch, precision.device)
    if isinstance(observer, SecondLook):
        _introduce(observer, workload, data)
    try:
        with torch.set_grad_enabled(not workload.forward_only):
            _step(workload, data, run, locator)
    except AmpDoctorError:
        raise
    except KeyboardInterrupt:
        run.interrupted = True
    except (Exception, SystemExit) as error:
        if _is_out_of_memory(error):
            raise ProbeError(
                f"out of memory in the {precision.role} pass: {str(error).splitlines()[0]}",
                "scan a smaller batch (fewer samples, shorter sequences) or a smaller model config",
            ) from error
        run.raised = _raised(error, run, locator.phase)
    run.gradients = {
        name: p.grad.detach().to_dense() if p.grad.layout != torch.strided else p.grad.detach()
        for name, p in model.named_parameters()
        if p.grad is not None
    }
    observer.name_gradients(run.gradients)
    if isinstance(observer, SecondLook):
        _conclude(observer, run, model)
    return run


def _step(workload: Workload, data: Any, run: Run, locator: Locator) -> None:
    precision = run.precision
    with run.observer:
        if precision.weights is not None:
            # Observed: a batch value that the dtype cannot hold becomes inf right here.
            low = precision.weights
            wide = precision.role == "reference"
            data = map_floating(data, lambda t: t if wide and t.itemsize > 4 else t.to(low))
        with precision.autocast():
            result = workload.step(workload.model, data)
        if workload.forward_only:
            run.outputs = tuple(tensor for _, tensor in named_tensors(result))
            return
        run.loss = result.detach()
        if not result.requires_grad:
            return
        locator.phase = "backward"
        # As GradScaler does: a float32 scale times the loss, then backward outside autocast.
        scaled = result * torch.tensor(precision.loss_scale, device=result.device)
        scaled.backward()
        run.backward_ran = True


def _introduce(look: SecondLook, workload: Workload, data: Any) -> None:
    for name, parameter in workload.model.named_parameters():
        look.know("parameter", name, parameter.detach())
    for name, tensor in workload.model.named_buffers():
        look.know("buffer", name, tensor)
    for name, tensor in named_tensors(data):
        look.know("batch", name, tensor.detach())


def _conclude(look: SecondLook, run: Run, model: nn.Module) -> None:
    """Marks the births that the loss and the gradients hold."""
    for result in (*run.outputs, *(() if run.loss is None else (run.loss,))):
        for number in look.births_in(result):
            look.births[number].reaches_loss = True
    for name, parameter in model.named_parameters():
        for number in () if parameter.grad is None else look.births_in(parameter.grad):
            look.births[number].reaches_gradients.append(name)


def _raised(error: BaseException, run: Run, phase: str) -> Raised:
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
    )


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )

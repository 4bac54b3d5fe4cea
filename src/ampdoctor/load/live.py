"""A Workload from objects that Python code already holds, instead of from what a config names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ampdoctor.config.workload import LossBuiltin
from ampdoctor.errors import LoadError
from ampdoctor.load.builtin_losses import LOSSES, builtin_step
from ampdoctor.load.call import call_model
from ampdoctor.load.data import first_batches, is_one_batch
from ampdoctor.load.describe import describe
from ampdoctor.load.eager import eagerly
from ampdoctor.load.loss import Step, loss_in, scalar, step_of
from ampdoctor.load.optimizer import checked_optimizer
from ampdoctor.load.seeds import preserved_rng, seed_everything
from ampdoctor.load.workload import Workload
from ampdoctor.load.wrappers import unwrapped

LossFn = Callable[[torch.nn.Module, Any], torch.Tensor]
BuildOptimizer = Callable[[torch.nn.Module], torch.optim.Optimizer]

GIVE_A_LOSS = (
    "Give one: loss_fn(model, batch), a function that returns one number; or loss_fn='cross_entropy', one of "
    "torch's by name; or loss_fn='none', to look at the forward pass only."
)


@contextmanager
def live_workload(
    model: torch.nn.Module,
    batch: Any,
    loss_fn: LossFn | str | None,
    *,
    batches: int | None,
    build_optimizer: BuildOptimizer | None,
    seed: int,
    title: str,
) -> Iterator[Workload]:
    """The workload; the model is without its wrappers inside, and afterwards wrapped again as it was.

    TypeError for an argument of the wrong kind, LoadError for data without a batch.
    """
    if not isinstance(model, torch.nn.Module):
        hint = "; give an instance, not the class" if isinstance(model, type) else ""
        raise TypeError(f"model must be a torch.nn.Module, got {describe(model)}{hint}")
    if batches is not None and (isinstance(batches, bool) or not isinstance(batches, int) or batches < 1):
        raise TypeError(f"batches must be a whole number from 1 on, got {batches!r}")
    if isinstance(build_optimizer, torch.optim.Optimizer) or (
        build_optimizer is not None and not callable(build_optimizer)
    ):
        raise TypeError(
            "optimizer must be a function (model) -> torch.optim.Optimizer, for a scan steps one of its own; "
            f"got {describe(build_optimizer)}"
        )
    step = _step(loss_fn)
    with preserved_rng():
        seed_everything(seed)
        taken = _batches(batch, batches)
    with unwrapped(model) as (plain_model, compiled):
        yield Workload(
            title=title,
            model=plain_model,
            batches=taken,
            step=eagerly(step),
            forward_only=loss_fn == "none",
            build_optimizer=None if build_optimizer is None else _checked(build_optimizer),
            compiled=compiled,
        )


def _batches(batch: Any, count: int | None) -> tuple[Any, ...]:
    """The one batch; of a list of batches all, of another iterable the first, where no count is given."""
    if count is None:
        count = len(batch) if isinstance(batch, list) and not is_one_batch(batch) else 1
    return first_batches(batch, count, "batch")


def _step(loss_fn: LossFn | str | None) -> Step:
    if loss_fn is None:
        return lambda model, batch: loss_in(call_model(model, batch), GIVE_A_LOSS)
    if loss_fn == "none":
        return call_model
    if isinstance(loss_fn, str):
        if loss_fn not in LOSSES:
            known = ", ".join(LOSSES)
            raise LoadError(f"loss_fn: {loss_fn!r} is no built-in loss", f"There are {known}, and none.")
        compute = builtin_step(LossBuiltin.model_validate({"builtin": loss_fn}))
        return lambda model, batch: scalar(compute(model, batch), f"loss_fn {loss_fn!r}")
    _check_loss_fn(loss_fn)
    return step_of(loss_fn, "loss_fn")


def _check_loss_fn(loss_fn: Any) -> None:
    if not callable(loss_fn) or isinstance(loss_fn, type):
        raise TypeError(f"loss_fn must be a function (model, batch) -> loss, got {describe(loss_fn)}")
    called = loss_fn.forward if isinstance(loss_fn, torch.nn.Module) else loss_fn
    try:
        signature = inspect.signature(called)
    except (ValueError, TypeError):  # Some functions written in C tell nothing about themselves.
        return
    try:
        signature.bind(None, None)
    except TypeError:
        raise TypeError(
            f"loss_fn is called with (model, batch), and {_name(loss_fn)} takes {signature}"
        ) from None


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _checked(build: BuildOptimizer) -> BuildOptimizer:
    """The same; LoadError where it returns no optimizer."""

    return lambda model: checked_optimizer(build(model), "optimizer")

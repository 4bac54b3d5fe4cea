"""A pass that stays open: its backward is run again at other loss scales, on the graph of the one forward."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from ampdoctor.load.seeds import seed_everything
from ampdoctor.load.workload import Workload
from ampdoctor.probe.passes.isolation import dense_gradients, isolated, kept_open
from ampdoctor.probe.passes.one_pass import Run, backward_at, take_step
from ampdoctor.probe.passes.precision import Precision
from ampdoctor.probe.watch.location import ModuleStack
from ampdoctor.probe.watch.observer import Observer


@dataclass
class KeptPass:
    """A pass at one loss scale, and its backward at others, bit for bit as whole passes give it.

    Closed by ``close``, by the next pass of any kind, and where its backward cannot be run again: where the
    user's code has a part in it (a Function, a hook, a checkpoint's second forward), which may remember.
    """

    workload: Workload
    batch: Any
    precision: Precision
    seed: int
    run: Run = field(init=False)
    """The whole pass."""
    _open: ExitStack | None = None
    _gradients_at: Sequence[Tensor] = ()

    def __post_init__(self) -> None:
        model = self.workload.model
        modules = ModuleStack(model)
        started = time.perf_counter()
        with ExitStack() as stack:
            stack.enter_context(isolated(model, self.batch, self.workload.step))
            stack.enter_context(self.precision.open(model))
            stack.enter_context(modules.watch())
            seed_everything(self.seed)
            self.run = take_step(self.workload, self.batch, self.precision, modules, Observer, keep=True)
            self.run.seconds = time.perf_counter() - started
            run = self.run
            sound = run.backward_ran and run.raised is None and not run.interrupted
            leaves = _leaves(run.graph) if sound and run.graph is not None else None
            if leaves is not None and run.observer.backward_is_torchs_own:
                self._gradients_at = leaves
                stack.enter_context(kept_open(self.close))
                self._open = stack.pop_all()
        if self._open is None:
            self.run.graph = None

    @property
    def is_open(self) -> bool:
        """``again`` may be asked."""
        return self._open is not None

    def again(self, loss_scale: float) -> Run | None:
        """The same pass at another scale; None, and closed, where only a whole one can tell."""
        first = self.run
        assert first.graph is not None
        first.observer.rewind()
        for leaf in self._gradients_at:
            leaf.grad = None
        run = replace(first, backward_ran=False, gradients={}, graph=None)
        started = time.perf_counter()
        try:
            with torch.enable_grad(), run.observer:
                backward_at(loss_scale, first.graph, run, retain_graph=True)
            run.backward_ran = True
        except KeyboardInterrupt:
            run.interrupted = True
        except Exception:  # a whole pass says what it is, and whether it is the model's
            self.close()
            return None
        run.gradients = dense_gradients(self.workload.model)
        run.observer.end(self.workload.model, run.results)
        run.seconds = time.perf_counter() - started
        if run.interrupted or run.observer.backward_is_torchs_own:
            return run
        self.close()
        return None

    def close(self) -> None:
        """Everything as it was before the pass."""
        stack, self._open, self.run.graph, self._gradients_at = self._open, None, None, ()
        if stack is not None:
            stack.close()


def _leaves(loss: Tensor) -> list[Tensor] | None:
    """The tensors at which its backward leaves gradients; None where an autograd.Function is part of it."""
    leaves: list[Tensor] = []
    pending = [loss.grad_fn]
    seen = set(pending)
    while pending:
        node = pending.pop()
        if isinstance(node, BackwardCFunction):
            return None
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            leaves.append(leaf)
        for following, _ in () if node is None else node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                pending.append(following)
    return leaves

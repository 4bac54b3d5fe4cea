"""A pass does not wait for the device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ampdoctor.probe.passes.one_pass import run_pass
from ampdoctor.probe.passes.precision import candidate
from ampdoctor.probe.plan import Plan
from ampdoctor.probe.watch import exponents
from ampdoctor.probe.watch.observer import Observer
from block_models import blocks
from probe_helpers import workload

WAITS = ("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__")


WAITING_OPS = ("_local_scalar_dense", "equal", "nonzero", "masked_select")


class WaitCounter(TorchDispatchMode):
    """An outer dispatch mode: sees the ops that the observer itself runs."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if name in WAITING_OPS:
            self.waits[name] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def counted_waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Everything that would make the host wait for a GPU, by name."""

    def counting(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def method(self: Tensor, *args: Any, **kwargs: Any) -> Any:
            counter.waits[name] += 1
            return original(self, *args, **kwargs)

        return method

    with monkeypatch.context() as patch, WaitCounter() as counter:
        for name in WAITS:
            patch.setattr(Tensor, name, counting(name, getattr(Tensor, name)))
        patch.setattr(exponents, "on_host", lambda x: False)  # a CPU's numbers are there at once
        yield counter.waits


def waits_of_a_pass(layers: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, Counter[str]]:
    """How many tensors a recorded pass of this many layers counted, and how often it waited."""
    precision = candidate(Plan(), torch.device("cpu"), 8.0)
    task = workload(blocks(layers))
    with counted_waits(monkeypatch) as waits:
        run = run_pass(task, torch.ones(2, 4), precision, 0, Observer)
        found = len(run.observer.records())
    assert run.raised is None and run.backward_ran
    return found, waits


def test_recording_more_ops_does_not_wait_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    few, waits_of_few = waits_of_a_pass(2, monkeypatch)
    many, waits_of_many = waits_of_a_pass(8, monkeypatch)
    assert many > 3 * few
    assert waits_of_many == waits_of_few


def test_the_counter_of_waits_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    with counted_waits(monkeypatch) as waits:
        x = torch.ones(2)
        assert x.sum() > 0
        x.sum().item(), x.tolist()
    assert waits == {"__bool__": 1, "item": 1, "_local_scalar_dense": 2, "tolist": 1}

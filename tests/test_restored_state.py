"""What a model or its process meddles with in a pass is afterwards as it was."""

from __future__ import annotations

import collections
import random
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ampdoctor.errors import ProbeError
from meddling import changed_in_place
from probe_helpers import pass_of, traced


@dataclass
class Slots:
    """A plain object without a ``__dict__``."""

    __slots__ = ("steps",)
    steps: list[int]

    def __init__(self) -> None:
        self.steps = [1]


class Table(dict[str, int]):
    """A dict of the user's, with an attribute."""

    def __init__(self, **items: int) -> None:
        super().__init__(**items)
        self.reads = 0


def counter_in_a_closure() -> Callable[[], int]:
    count = 0

    def counted() -> int:
        nonlocal count
        count += 1
        return count

    return counted


def cell_of(function: Callable[[], int]) -> object:
    assert isinstance(function, types.FunctionType) and function.__closure__ is not None
    return function.__closure__[0].cell_contents


class Meddler(nn.Module):
    """Meddles, then ends as it is told to."""

    def __init__(self, meddle: Callable[[Meddler, Any], object], ending: str) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.norm = nn.BatchNorm1d(2)
        self.spare = nn.Parameter(torch.ones(2))
        self.plain = torch.zeros(2)
        self.shift = torch.zeros(2, requires_grad=True)
        self.history: list[int] = [1]
        self.cache: dict[str, int] = {"a": 1}
        self.seen: set[int] = {1}
        self.queue = collections.deque([1], maxlen=3)
        self.scale = 1.0
        self.ema = {"a": [torch.zeros(2)]}
        self.array = np.zeros(2)
        self.counter = types.SimpleNamespace(steps=0)
        self.slots = Slots()
        self.own = torch.Generator().manual_seed(1)
        self.dice = random.Random(1)
        self.numpy_dice = np.random.default_rng(1)
        self.hidden = [nn.BatchNorm1d(2)]
        self.counted = counter_in_a_closure()
        self.table = Table(a=1)
        self.meddle = meddle
        self.ending = ending

    def forward(self, batch: dict[str, Any]) -> Tensor:
        self.meddle(self, batch)
        if self.ending == "always raises":
            raise ValueError("always")
        if self.ending == "raises in half" and torch.is_autocast_enabled("cpu"):
            raise ValueError("in half")
        if self.ending == "is interrupted":
            raise KeyboardInterrupt
        return self.linear(batch["x"]) + self.shift


def a_hook(*arguments: Any) -> None:
    return None


Meddle = Callable[[Meddler, Any], object]


Look = Callable[[Meddler, Any], object]


MODEL: dict[str, tuple[Meddle, Look]] = {
    "weights": (lambda m, b: changed_in_place(m.linear.weight), lambda m, b: m.linear.weight.tolist()),
    "weight data": (lambda m, b: setattr(m.spare, "data", torch.zeros(5)), lambda m, b: m.spare.tolist()),
    "a parameter replaced": (
        lambda m, b: setattr(m.linear, "weight", nn.Parameter(torch.zeros(2, 2))),
        lambda m, b: id(m.linear.weight),
    ),
    "buffers": (lambda m, b: m.norm(b["x"]), lambda m, b: [t.tolist() for t in m.norm.buffers()]),
    "a buffer added": (
        lambda m, b: m.register_buffer("extra", torch.ones(1)),
        lambda m, b: [n for n, _ in m.named_buffers()],
    ),
    "a module added": (
        lambda m, b: m.add_module("extra", nn.Linear(2, 2)),
        lambda m, b: [n for n, _ in m.named_modules()],
    ),
    "a module removed": (lambda m, b: delattr(m, "norm"), lambda m, b: [n for n, _ in m.named_modules()]),
    "a hook": (
        lambda m, b: m.linear.register_forward_hook(a_hook),
        lambda m, b: len(m.linear._forward_hooks),
    ),
    "an attribute": (lambda m, b: setattr(m, "scale", m.scale * 2), lambda m, b: m.scale),
    "a new attribute": (lambda m, b: setattr(m, "last", b["x"]), lambda m, b: hasattr(m, "last")),
    "a list": (lambda m, b: m.history.append(2), lambda m, b: (id(m.history), list(m.history))),
    "a dict": (lambda m, b: m.cache.update(b=2), lambda m, b: (id(m.cache), dict(m.cache))),
    "a set": (lambda m, b: m.seen.add(2), lambda m, b: (id(m.seen), set(m.seen))),
    "a deque": (lambda m, b: m.queue.extend([2, 3, 4]), lambda m, b: (id(m.queue), list(m.queue))),
    "a tensor that is no buffer": (lambda m, b: changed_in_place(m.plain), lambda m, b: m.plain.tolist()),
    "a tensor in a list in a dict": (
        lambda m, b: changed_in_place(m.ema["a"][0]),
        lambda m, b: (id(m.ema["a"][0]), m.ema["a"][0].tolist()),
    ),
    "a list in a dict": (lambda m, b: m.ema["a"].clear(), lambda m, b: len(m.ema["a"])),
    "an array": (lambda m, b: m.array.fill(1), lambda m, b: m.array.tolist()),
    "a counter in a plain object": (
        lambda m, b: setattr(m.counter, "steps", 5),
        lambda m, b: m.counter.steps,
    ),
    "a list in a slot": (lambda m, b: m.slots.steps.append(2), lambda m, b: list(m.slots.steps)),
    "a slot": (lambda m, b: setattr(m.slots, "steps", []), lambda m, b: list(m.slots.steps)),
    "a dict of the user's own class": (
        lambda m, b: (m.table.update(b=2), setattr(m.table, "reads", 1)),
        lambda m, b: (dict(m.table), m.table.reads),
    ),
    "a generator of torch's": (
        lambda m, b: torch.rand(1, generator=m.own),
        lambda m, b: m.own.get_state().tolist(),
    ),
    "a generator of python's": (lambda m, b: m.dice.random(), lambda m, b: m.dice.getstate()),
    "a generator of numpy's": (
        lambda m, b: m.numpy_dice.random(),
        lambda m, b: str(m.numpy_dice.bit_generator.state),
    ),
    "a module that is registered nowhere": (
        lambda m, b: m.hidden[0](b["x"]),
        lambda m, b: [t.tolist() for t in m.hidden[0].buffers()],
    ),
    "a counter in a closure": (lambda m, b: m.counted(), lambda m, b: cell_of(m.counted)),
    "the gradient of a tensor that is no parameter": (lambda m, b: None, lambda m, b: m.shift.grad),
    "training mode": (lambda m, b: m.eval(), lambda m, b: [x.training for x in m.modules()]),
    "what needs a gradient": (
        lambda m, b: m.linear.weight.requires_grad_(False),
        lambda m, b: [p.requires_grad for p in m.parameters()],
    ),
    "gradients": (lambda m, b: None, lambda m, b: [id(p.grad) for p in m.parameters()]),
    "the batch": (lambda m, b: changed_in_place(b["x"]), lambda m, b: b["x"].tolist()),
    "the batch's container": (lambda m, b: b.pop("y"), lambda m, b: sorted(b)),
}


PROCESS: dict[str, tuple[Meddle, Look]] = {
    "torch's generator": (lambda m, b: torch.rand(3), lambda m, b: torch.get_rng_state().tolist()),
    "torch's seed": (lambda m, b: torch.manual_seed(5), lambda m, b: torch.initial_seed()),
    "python's generator": (lambda m, b: random.random(), lambda m, b: random.getstate()),
    "numpy's generator": (lambda m, b: np.random.rand(), lambda m, b: np.random.get_state()[2]),
    "default dtype": (
        lambda m, b: torch.set_default_dtype(torch.float64),
        lambda m, b: torch.get_default_dtype(),
    ),
    "the number of threads": (
        lambda m, b: torch.set_num_threads(torch.get_num_threads() + 1),
        lambda m, b: torch.get_num_threads(),
    ),
    "grad mode": (lambda m, b: torch.set_grad_enabled(False), lambda m, b: torch.is_grad_enabled()),
    "anomaly mode": (
        lambda m, b: torch.autograd.set_detect_anomaly(True),
        lambda m, b: torch.is_anomaly_enabled(),
    ),
    "matmul precision": (
        lambda m, b: torch.set_float32_matmul_precision("medium"),
        lambda m, b: (torch.get_float32_matmul_precision(), torch.backends.cuda.matmul.allow_tf32),
    ),
    "TF32 in convolutions": (
        lambda m, b: setattr(torch.backends.cudnn, "allow_tf32", False),
        lambda m, b: torch.backends.cudnn.allow_tf32,
    ),
    "deterministic algorithms": (
        lambda m, b: torch.use_deterministic_algorithms(True, warn_only=True),
        lambda m, b: torch.get_deterministic_debug_mode(),
    ),
    "cudnn's benchmark": (
        lambda m, b: setattr(torch.backends.cudnn, "benchmark", True),
        lambda m, b: torch.backends.cudnn.benchmark,
    ),
}


ENDINGS = ("returns", "raises in half", "always raises", "is interrupted")


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("aspect", {**MODEL, **PROCESS})
def test_it_is_as_it_was(aspect: str, ending: str) -> None:
    meddle, look = {**MODEL, **PROCESS}[aspect]
    model = Meddler(meddle, ending)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    batch = {"x": torch.ones(3, 2), "y": 1}
    before = look(model, batch)
    if ending == "always raises":
        with pytest.raises(ProbeError):
            traced(model, batch)
    else:
        trace = traced(model, batch)
        assert trace.interrupted == (ending == "is interrupted")
    assert look(model, batch) == before


def test_the_memory_of_weights_is_the_users_own_again() -> None:
    model = nn.Linear(2, 2)
    before = [p.data_ptr() for p in model.parameters()]
    traced(model, torch.ones(1, 2), mode="half")
    assert [p.data_ptr() for p in model.parameters()] == before
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_gradients_from_before_take_no_part() -> None:
    model = nn.Linear(2, 1, bias=False)
    mine = model.weight.grad = torch.full((1, 2), 100.0)
    trace = traced(model, torch.ones(1, 2))
    assert [p.absmax for p in pass_of(trace).parameters] == [1.0]
    assert model.weight.grad is mine
    assert mine.tolist() == [[100.0, 100.0]]


def test_the_gradient_of_a_batch_leaf_is_kept() -> None:
    x = torch.ones(1, 2, requires_grad=True)
    mine = x.grad = torch.full((1, 2), 7.0)
    traced(nn.Linear(2, 1), x)
    assert x.grad is mine and mine.tolist() == [[7.0, 7.0]]

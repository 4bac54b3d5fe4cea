"""A probe leaves model, batch and process as they were, however it ends; every pass starts from the same."""

from __future__ import annotations

import collections
import random
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from ampdoctor.errors import ProbeError
from ampdoctor.probe.passes.device import flags_kept, tf32_off
from ampdoctor.probe.passes.isolation import batch_copy, map_floating, named_tensors
from probe_helpers import Calls, pass_of, traced

CPU = torch.device("cpu")

# ---------------------------------------------------------------- what a model may meddle with


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


def changed_in_place(tensor: Tensor) -> None:
    with torch.no_grad():
        tensor.add_(1.0)


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


# ---------------------------------------------------------------- every pass starts from the same


class Remembers(nn.Module):
    """Its output grows with everything that an earlier call left behind."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1))
        self.register_buffer("steps", torch.zeros(1))
        self.plain = torch.zeros(1)
        self.count = 0
        self.history: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        changed_in_place(self.w)
        self.steps += 1
        self.plain += 1
        self.count += 1
        self.history.append(1)
        left_behind = self.steps + self.plain + self.count + len(self.history)
        torch.set_default_dtype(torch.float64)
        return x * (self.w.detach() + left_behind) + self.w * 0.0 + torch.tensor(1.0).item()


def test_every_pass_starts_from_the_same_state() -> None:
    trace = traced(Remembers(), torch.ones(1), torch.ones(1), mode="none")
    # w is 2 after its addition, the four counters are 1 each, and 1 is added: 2 + 4 + 1.
    assert [p.loss for p in trace.passes] == [7.0] * 4
    assert trace.deterministic is True


def test_every_pass_draws_the_same_numbers() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        return x + torch.rand(1) + random.random() + float(np.random.rand())

    trace = traced(Calls(forward), torch.ones(1), torch.ones(1), mode="none")
    assert len({p.loss for p in trace.passes}) == 1


# ---------------------------------------------------------------- parametrised weights


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    "wrap",
    [
        parametrizations.spectral_norm,
        parametrizations.weight_norm,
        parametrizations.orthogonal,
        torch.nn.utils.spectral_norm,
        torch.nn.utils.weight_norm,
    ],
    ids=["spectral", "weight", "orthogonal", "spectral (hook)", "weight (hook)"],
)
@pytest.mark.parametrize("mode", ["autocast", "none"])
def test_a_reparametrised_weight(wrap: Callable[[nn.Module], nn.Module], mode: str) -> None:
    torch.manual_seed(0)
    linear = wrap(nn.Linear(3, 3))
    x = torch.randn(2, 3)
    state = {k: v.clone() for k, v in linear.state_dict().items()}
    trace = traced(linear, x, mode=mode)
    assert all(torch.equal(v, state[k]) for k, v in linear.state_dict().items())
    assert [p.raised for p in trace.passes] == [None, None]
    assert all(p.nan == p.inf == 0 for p in pass_of(trace).parameters)
    linear(x).sum().backward()  # it still works
    assert all(p.grad is not None for p in linear.parameters())


# ---------------------------------------------------------------- batches


@dataclass(frozen=True, slots=True)
class Slotted:
    x: Tensor
    mask: None


class Plain:
    def __init__(self, x: Tensor) -> None:
        self.x = x
        self.items = [x]  # not a mapping, for all its ``items``


ONE = torch.ones(1)


@pytest.mark.parametrize(
    ("batch", "names"),
    [
        (ONE, [""]),
        ({"a": ONE, "b": {"c": [ONE, None, "text"]}}, ["['a']", "['b']['c'][0]"]),
        ((ONE, [ONE]), ["[0]", "[1][0]"]),
        (collections.UserDict(x=ONE), ["['x']"]),
        (Plain(ONE), [".x", ".items[0]"]),
        (Slotted(ONE, None), [".x"]),
        (collections.namedtuple("Pair", "x y")(ONE, 2), ["[0]"]),
        (None, []),
        ([nn.Linear(1, 1), Tensor], []),
    ],
    ids=["tensor", "dict", "tuple", "UserDict", "object", "slots", "namedtuple", "None", "modules and types"],
)
def test_every_tensor_of_a_batch_has_a_name(batch: Any, names: list[str]) -> None:
    assert [name for name, _ in named_tensors(batch)] == names


def test_a_batch_that_holds_itself() -> None:
    batch: dict[str, Any] = {"x": ONE}
    batch["self"] = batch
    holder = Plain(ONE)
    holder.items.append(holder)  # type: ignore[arg-type]
    assert [name for name, _ in named_tensors([batch, holder])] == ["[0]['x']", "[1].x", "[1].items[0]"]


def test_a_copied_batch_shares_nothing_with_the_users() -> None:
    leaf = torch.ones(2, requires_grad=True)
    batch = {"leaf": leaf, "made": leaf * 2, "again": leaf, "list": [1]}
    copied = batch_copy(batch, CPU)
    assert copied["leaf"].requires_grad and copied["leaf"].is_leaf and copied["leaf"] is not leaf
    assert copied["made"].requires_grad and copied["made"].is_leaf
    assert copied["again"] is copied["leaf"]
    assert copied["list"] is not batch["list"]
    assert copied["leaf"].data_ptr() != leaf.data_ptr()


def test_the_floating_tensors_of_a_batch_are_converted_and_no_others() -> None:
    batch = {"x": torch.ones(1), "i": torch.ones(1, dtype=torch.int64), "s": Slotted(torch.ones(1), None)}
    converted = map_floating(batch, lambda t: t.half())
    assert (converted["x"].dtype, converted["i"].dtype, converted["s"].x.dtype) == (
        torch.float16, torch.int64, torch.float16,
    )  # fmt: skip


@pytest.mark.parametrize("part", [threading.Lock(), (n for n in "abc")], ids=["a lock", "a generator"])
def test_a_batch_that_cannot_be_copied_is_refused(part: Any) -> None:
    with pytest.raises(ProbeError, match=r"the batch cannot be copied.*cannot pickle"):
        batch_copy({"x": ONE, "part": part}, CPU)


# ---------------------------------------------------------------- switches of the process

NEW_SWITCHES = hasattr(torch.backends.cuda.matmul, "fp32_precision")


def test_no_switch_leaves_tf32_on() -> None:
    with flags_kept():
        torch.set_float32_matmul_precision("medium")
        torch.backends.cudnn.allow_tf32 = True
        with tf32_off():
            assert torch.get_float32_matmul_precision() == "highest"
            assert not torch.backends.cuda.matmul.allow_tf32
            assert not torch.backends.cudnn.allow_tf32
            if NEW_SWITCHES:
                assert torch.backends.mkldnn.matmul.fp32_precision not in ("bf16", "tf32")
        assert torch.get_float32_matmul_precision() == "medium"
        assert torch.backends.cudnn.allow_tf32


@pytest.mark.skipif(not NEW_SWITCHES, reason="this PyTorch has no fp32_precision")
def test_the_newer_switches_may_be_in_use() -> None:
    matmul = torch.backends.cuda.matmul
    with flags_kept():
        matmul.fp32_precision = "tf32"
        with pytest.raises(RuntimeError):  # the older name of the same switch can no longer be read
            torch.get_float32_matmul_precision()
        with tf32_off():
            assert matmul.fp32_precision == "ieee"
        assert matmul.fp32_precision == "tf32"
        assert pass_of(traced(nn.Linear(2, 2), torch.ones(1, 2))).raised is None
        assert matmul.fp32_precision == "tf32"


@pytest.mark.skipif(not NEW_SWITCHES, reason="this PyTorch has no fp32_precision")
def test_switches_that_nothing_changed_are_not_written() -> None:
    before = torch.backends.cuda.matmul.fp32_precision
    traced(nn.Linear(2, 2), torch.ones(1, 2))
    assert torch.backends.cuda.matmul.fp32_precision == before


def test_what_a_loss_closes_over_starts_the_same_in_every_pass() -> None:
    seen = []
    state = {"steps": torch.zeros(())}

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        seen.append(float(state["steps"].add_(1)))
        return model(x).sum()

    # ``seen`` is emptied after every pass as well: what is asserted is the loss.
    trace = traced(nn.Linear(2, 1), torch.ones(1, 2), loss=lambda m, x: loss(m, x) * state["steps"])
    assert seen == []
    assert float(state["steps"]) == 0.0
    losses = [p.loss for p in trace.passes if p.loss is not None]
    assert losses == pytest.approx([losses[0]] * len(losses), rel=1e-3)


@pytest.mark.parametrize("first_use", ["ampdoctor.scan", "import ampdoctor.api.check"])
def test_the_first_use_draws_nothing_from_pythons_generator(first_use: str) -> None:
    use = (
        "model = torch.nn.Linear(1, 1)\nampdoctor.scan(model, torch.ones(1, 1), lambda m, x: m(x).sum())"
        if first_use == "ampdoctor.scan"
        else "with ampdoctor.api.drawing_nothing():\n    import ampdoctor.api.check"
    )
    program = f"""
import random
import torch
import ampdoctor
before = random.getstate()
{use}
assert random.getstate() == before
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)

"""A probe leaves model, batch and process as they were, however it ends; every pass starts from the same."""

from __future__ import annotations

import collections
import random
import subprocess
import sys
import threading
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
from meddling import changed_in_place
from probe_helpers import Calls, pass_of, traced

CPU = torch.device("cpu")


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

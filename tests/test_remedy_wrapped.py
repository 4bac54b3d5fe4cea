"""A plan at work where others wrap the model: DDP, fully_shard, activation checkpointing, torch.compile."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from itertools import permutations
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.torch_version import TorchVersion
from torch.utils.checkpoint import checkpoint

import ampdoctor
from ampdoctor.remedy.plan import TreatmentPlan

PLAN = TreatmentPlan(fp32=("loud",), scales={"faint": 2.0**20})
"""256 * 512 is past FP16's end; a gradient of 2^-26 is zero in FP16, 2^-6 is none."""
EXPECTED = (131072.0, {"loud.0.weight": 512.0, "loud.1.weight": 256.0, "faint.weight": 2.0**-26})
"""Output of the loud tower on 1, and what arrives at each weight: by hand, as in FP32."""


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.loud = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
        self.faint = nn.Linear(1, 1, bias=False)
        for parameter, value in zip(self.parameters(), (256.0, 512.0, 1.0), strict=True):
            nn.init.constant_(parameter, value)
        self.calls: Callable[..., Any] = lambda function, *args: function(*args)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.calls(self.loud, x), self.calls(self.faint, x)


def step(model: nn.Module) -> tuple[float, dict[str, float]]:
    """(the loud tower's output, {parameter: gradient}) under FP16 autocast."""
    with torch.autocast("cpu", torch.float16):
        loud, faint = model(torch.ones(1, 1))
    (loud.float() + faint.float() * 2.0**-26).sum().backward()
    gradients = {name.removeprefix("module."): p.grad for name, p in model.named_parameters()}
    return float(loud.detach()), {name: value_of(g) for name, g in gradients.items() if g is not None}


def value_of(gradient: Tensor) -> float:
    return float(gradient.full_tensor() if isinstance(gradient, DTensor) else gradient)


@pytest.fixture(scope="module")
def group() -> Iterator[None]:
    """A group of one process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def sharded(model: Towers) -> nn.Module:
    if TorchVersion(torch.__version__) < "2.7":
        pytest.skip("its fully_shard does not run on a CPU")
    mesh = init_device_mesh("cpu", (1,))
    for part in (model.loud, model.faint, model):
        fully_shard(part, mesh=mesh)
    return model


def test_without_a_wrapper() -> None:
    model = Towers()
    with ampdoctor.apply(model, PLAN):
        assert step(model) == EXPECTED
    model.zero_grad()
    assert step(model) == (float("inf"), {**EXPECTED[1], "faint.weight": 0.0})


@pytest.mark.parametrize("wrap", [DistributedDataParallel, sharded])
@pytest.mark.parametrize("first", ["plan", "wrapper"])
@pytest.mark.usefixtures("group")
def test_of_several_processes(wrap: Callable[[Towers], nn.Module], first: str) -> None:
    model = Towers()
    names = list(model.state_dict())
    wrapped = wrap(model) if first == "wrapper" else model
    applied = ampdoctor.apply(model, PLAN)
    wrapped = wrap(model) if first == "plan" else wrapped
    assert [name.removeprefix("module.") for name in wrapped.state_dict()] == names
    assert step(wrapped) == EXPECTED
    applied.remove()
    wrapped.zero_grad()
    assert step(wrapped)[0] == float("inf")


@pytest.mark.parametrize("reentrant", [True, False])
def test_in_a_recomputed_forward(reentrant: bool) -> None:
    model = Towers()
    model.calls = partial(checkpoint, use_reentrant=reentrant)
    x = torch.ones(1, 1, requires_grad=True)  # the reentrant kind wants an input with a gradient
    with ampdoctor.apply(model, PLAN):
        with torch.autocast("cpu", torch.float16):
            loud, faint = model(x)
        (loud.float() + faint.float() * 2.0**-26).sum().backward()
    assert {name: float(p.grad) for name, p in model.named_parameters() if p.grad is not None} == EXPECTED[1]


def whole(model: Towers) -> None:
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))


def compiled(model: nn.Module) -> None:
    model.compile(backend="aot_eager")


def compiled_in_parts(model: nn.Module) -> None:
    for part in model.children():
        part.compile(backend="aot_eager")


def planned(model: nn.Module) -> None:
    ampdoctor.apply(model, PLAN)


@pytest.mark.parametrize("shard", [sharded, whole])
@pytest.mark.parametrize("compiles", [compiled, compiled_in_parts])
@pytest.mark.parametrize("order", list(permutations(("plan", "shard", "compile"))), ids=" ".join)
@pytest.mark.usefixtures("group")
def test_sharded_and_compiled(
    shard: Callable[[Towers], Any], compiles: Callable[[nn.Module], None], order: tuple[str, ...]
) -> None:
    """In a later step as in the first: fully_shard keeps the parameters that it puts in for a forward."""
    if TorchVersion(torch.__version__) < "2.7":
        pytest.skip("its fully_shard does not run on a CPU")
    torch._dynamo.reset()  # type: ignore[attr-defined]
    model = Towers()
    for done in order:
        {"plan": planned, "shard": shard, "compile": compiles}[done](model)
    for _ in range(2):
        model.zero_grad()
        assert step(model) == EXPECTED


def test_a_copy_compiled() -> None:
    """Its parameters are others than those that the plan was applied to."""
    torch._dynamo.reset()  # type: ignore[attr-defined]
    model = Towers()
    planned(model)
    twin = copy.deepcopy(model)
    for each in (model, twin):
        compiled(each)
        assert step(each) == EXPECTED


def test_compiled_in_one_graph() -> None:
    model = Towers()
    with ampdoctor.apply(model, PLAN):
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        loud, gradients = step(compiled)
        assert (loud, {n.removeprefix("_orig_mod."): g for n, g in gradients.items()}) == EXPECTED

"""Models inside DDP, DataParallel, FSDP2, tensor parallelism, in one process: scanned as what they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.torch_version import TorchVersion

import ampdoctor
from ampdoctor.load.script.optimizer import twin_of
from ampdoctor.load.wrappers import unwrapped

Wrap = Callable[[nn.Module], nn.Module]
BATCH = (
    torch.randn(8, 16, generator=torch.Generator().manual_seed(1)),
    torch.arange(8) % 4,
)


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    """A group of one process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def loss(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model(batch[0]), batch[1])


def sharded(model: nn.Module) -> nn.Module:
    assert isinstance(model, nn.Sequential)
    mesh = init_device_mesh("cpu", (1,))
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=mesh)
    return model


def tensor_parallel(model: nn.Module) -> nn.Module:
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return parallelize_module(model, init_device_mesh("cpu", (1,)), plan)


WRAPS: dict[str, Wrap] = {
    "ddp": DistributedDataParallel,
    "ddp, static graph": lambda m: DistributedDataParallel(m, static_graph=True),
    "ddp, unused parameters": lambda m: DistributedDataParallel(m, find_unused_parameters=True),
    "data parallel": nn.DataParallel,
    "fully sharded": sharded,
    "tensor parallel": tensor_parallel,
    "compiled inside ddp": lambda m: DistributedDataParallel(torch.compile(m, backend="eager")),  # type: ignore[arg-type]
}


def scan(model: nn.Module, **precision: Any) -> ampdoctor.Report:
    return ampdoctor.scan(model, BATCH, loss, device="cpu", loss_scale=1024.0, **precision)


@pytest.mark.parametrize("mode", ["autocast", "half"])
@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS.keys())
def test_a_wrapped_model_is_scanned_as_the_model_that_it_is(wrap: Wrap, mode: str) -> None:
    plain, wrapped = scan(mlp(), mode=mode), scan(wrap(mlp()), mode=mode)
    assert wrapped.verdict == plain.verdict == "clean"
    assert wrapped.losses == plain.losses
    assert [(row.module, row.type) for row in wrapped.layers] == [
        (row.module, row.type) for row in plain.layers
    ]
    assert wrapped.parameters == plain.parameters != ()


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS.keys())
def test_training_goes_on_after_a_scan_as_if_there_had_been_none(wrap: Wrap) -> None:
    if wrap is sharded and TorchVersion(torch.__version__) < "2.7":
        pytest.skip("its fully_shard does not run on a CPU, but for a scan")

    def trained(scanned: bool) -> list[Tensor]:
        model = wrap(mlp())
        before = list(model.named_parameters())
        if scanned:
            scan(model, mode="half")
        after = list(model.named_parameters())
        assert [n for n, _ in after] == [n for n, _ in before]
        assert all(a is b for (_, a), (_, b) in zip(after, before, strict=True))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            loss(model, BATCH).backward()
            optimizer.step()
        return [p.full_tensor() if isinstance(p, DTensor) else p.detach() for p in model.parameters()]

    for a, b in zip(trained(True), trained(False), strict=True):
        assert torch.equal(a, b)


def test_gradients_are_averaged_after_a_scan_and_not_during_one() -> None:
    calls: list[int] = []

    def average(state, bucket):  # type: ignore[no-untyped-def]  # DDP reads annotations, and as no strings
        calls.append(1)
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    model = DistributedDataParallel(mlp())
    model.register_comm_hook(None, average)
    scan(model, mode="half")  # casts weights, which would give them new, unwatched accumulators
    assert calls == []
    loss(model, BATCH).backward()
    assert calls == [1]


def test_a_loss_that_knows_of_the_wrapper() -> None:
    wrapped = DistributedDataParallel(mlp(), static_graph=True)

    def by_closure(_: nn.Module, batch: Any) -> Tensor:
        return cross_entropy(wrapped(batch[0]), batch[1])

    def by_attribute(model: Any, batch: Any) -> Tensor:
        return cross_entropy(model.module[2](model.module[:2](batch[0])), batch[1])

    for known in (by_closure, by_attribute):
        report = ampdoctor.scan(wrapped, BATCH, known, device="cpu", loss_scale=1024.0)
        assert report.verdict == "clean"
        assert {row.name for row in report.parameters if row.absmax} >= {"0.weight", "2.weight"}
    assert "module" not in wrapped.module.__dict__ and "forward" not in wrapped.__dict__


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS.keys())
def test_a_fault_below_a_wrapper_has_the_place_of_its_module(wrap: Wrap) -> None:
    model = mlp()
    with torch.no_grad():
        model[2].weight.fill_(60000.0)
    report = scan(wrap(model))
    assert (report.verdict, report.first_fault and report.first_fault.module) == ("forward-overflow", "2")


def test_a_recurrent_network_uses_the_weights_that_stand_in() -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(16, 8, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.rnn(x[:, None].expand(-1, 2, -1))[0][:, 1]  # type: ignore[no-any-return]

    report = scan(DistributedDataParallel(Tagger()))
    assert report.verdict == "clean"
    names = {row.name for row in report.parameters if row.absmax}
    assert names == {f"rnn.{kind}_{part}_l0" for kind in ("weight", "bias") for part in ("ih", "hh")}


@pytest.mark.parametrize(
    "wrap", [WRAPS["ddp, static graph"], WRAPS["tensor parallel"]], ids=["ddp", "tensor parallel"]
)
def test_a_scripts_optimizer_is_that_of_the_weights_that_stand_in(wrap: Wrap) -> None:
    model = wrap(mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss(model, BATCH).backward()
    optimizer.step()
    build = twin_of(optimizer)
    with unwrapped(model) as (plain, _):
        twin = build(plain)
        parameters = list(plain.parameters())
        assert [id(p) for g in twin.param_groups for p in g["params"]] == [id(p) for p in parameters]
        momenta = [twin.state[p]["momentum_buffer"] for p in parameters]
        assert all(type(m) is Tensor and m.shape == p.shape for m, p in zip(momenta, parameters, strict=True))


def test_a_policy_of_fsdp_is_not_followed_and_that_is_said() -> None:
    model = mlp()
    fully_shard(
        model,
        mesh=init_device_mesh("cpu", (1,)),
        mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    )
    said = (
        "FSDP's own policy (param_dtype bfloat16, reduce_dtype float32): the precision that is configured ran"
    )
    assert said in scan(model).not_seen
    assert not any("policy" in words for words in scan(sharded(mlp())).not_seen)

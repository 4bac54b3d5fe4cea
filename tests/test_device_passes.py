"""What recording costs on a device: no waiting, few kernels a tensor, no memory beyond the op that made one.

Without a GPU: on tensors without values, counted as a device's are; ``test_host_cuda`` runs the same under
CUDA's name.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from ampdoctor.load.workload import Workload
from ampdoctor.probe.births import drift
from ampdoctor.probe.births.reference_twins import ReferenceWatch
from ampdoctor.probe.births.second_look import SecondLook
from ampdoctor.probe.passes.one_pass import run_pass
from ampdoctor.probe.passes.precision import candidate, reference
from ampdoctor.probe.plan import Plan
from ampdoctor.probe.watch import exponents
from ampdoctor.probe.watch.observer import Observer
from ampdoctor.probe.watch.op_arguments import flat
from ampdoctor.probe.watch.tally import Tally
from ampdoctor.probe.watch.unrecorded import Unrecorded
from fake_pass import Convolutions, Transformer, all_passes, fake_tensors, recorded

# ---------------------------------------------------------------- waiting


@pytest.mark.parametrize("kind", [Observer, drift._Sampled])
def test_recording_a_pass_asks_for_no_value(kind: type[Observer]) -> None:
    for run in all_passes("cpu", kind).values():
        assert (run["raised"], run["backward"]) == (None, True)
        assert run["counted"]["forward"] > 15 and run["counted"]["backward"] > 25


def test_a_value_that_is_asked_for_would_show() -> None:
    class Asks(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            return y.sum() / y.abs().max().item()

    with fake_tensors() as crossings:
        run = recorded(lambda: Asks(4, 4), torch.zeros(2, 4), "cpu", "candidate", crossings)
    assert run.raised is not None
    assert run.raised.type == "DataDependentOutputException"


# ---------------------------------------------------------------- kernels


NO_KERNEL = {"detach", "view", "view_as_real", "as_strided", "slice", "select", "split", "expand", "empty"}


class Ops(TorchDispatchMode):
    """The ops that run a kernel on a device, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if func.namespace == "aten" and name not in NO_KERNEL:  # fake tensors ask for devices, in ``prim``
            self.seen[name] += 1
        return func(*args, **(kwargs or {}))


def ops_to_count(make: Callable[[], Tensor], exponents: bool = True) -> Counter[str]:
    """What ``Tally.add`` runs for a tensor on a device."""
    with fake_tensors():
        tensor = make()
        with Ops() as ops:
            Tally().add(tensor, None, exponents=exponents)
    return ops.seen


@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e5m2, torch.complex64],
    ids=str,
)
def test_as_many_ops_count_a_large_tensor_as_a_small_one(dtype: torch.dtype) -> None:
    small, large = (ops_to_count(partial(torch.empty, n, dtype=dtype)) for n in (1_000, 3_000_000))
    assert large == small
    assert large.total() <= (17 if dtype == torch.float64 else 10)


def test_without_exponents_it_takes_a_reduction() -> None:
    seen = ops_to_count(lambda: torch.empty(3_000_000), exponents=False)
    assert seen == {"aminmax": 1}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_permuted_tensors_are_read_as_they_lie(dtype: torch.dtype) -> None:
    def permuted() -> Tensor:
        return torch.empty(8, 16, 9, 9, dtype=dtype, memory_format=torch.channels_last)

    def plain() -> Tensor:
        return torch.empty(8, 16, 9, 9, dtype=dtype)

    assert ops_to_count(permuted) == ops_to_count(plain)
    assert "clone" in ops_to_count(lambda: torch.empty(64, dtype=dtype)[::2])  # there are gaps


class Small(nn.Module):
    """A bit of everything: a product, a norm, a view, a write in place, a backward; the last goes wrong."""

    def __init__(self, layout: torch.memory_format, factor: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layout, self.factor = layout, factor
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.to(memory_format=layout)

    def forward(self, images: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv(images.contiguous(memory_format=self.layout))))
        x = x.half() * self.factor
        x.add_(1.0)
        return x.permute(0, 2, 3, 1).float().mean()


def ops_of_a_pass(
    kind: Any, side: int, layout: torch.memory_format = torch.contiguous_format, factor: float = 2.0
) -> Counter[str]:
    """What a candidate pass runs as on a device, and whoever looks on."""
    batch = torch.randn(2, 4, side, side)
    workload = Workload("test", Small(layout, factor), (batch,), lambda m, x: m(x))
    precision = candidate(Plan(device="cpu", emulate="cpu"), torch.device("cpu"), 1.0)
    with Ops() as ops:
        run = run_pass(workload, batch, precision, 0, kind)
    assert run.raised is None and run.backward_ran
    return ops.seen


ONLOOKERS = [Observer, drift._Sampled, SecondLook, partial(ReferenceWatch, births={})]


@pytest.mark.parametrize("factor", [2.0, 1e6], ids=["all finite", "overflow"])
@pytest.mark.parametrize("kind", ONLOOKERS, ids=["observer", "drift", "second look", "twins"])
def test_whoever_looks_on_runs_as_many_ops_for_large_tensors(
    kind: Any, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exponents, "on_host", lambda x: False)
    small, large = (ops_of_a_pass(kind, side, factor=factor) for side in (64, 256))
    assert large == small


@pytest.mark.parametrize("kind", ONLOOKERS, ids=["observer", "drift", "second look", "twins"])
def test_whoever_looks_on_copies_no_whole_tensor_of_another_layout(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exponents, "on_host", lambda x: False)
    last, first = (ops_of_a_pass(kind, 64, f) for f in (torch.channels_last, torch.contiguous_format))
    absent, absent_first = (
        ops_of_a_pass(Unrecorded, 64, f) for f in (torch.channels_last, torch.contiguous_format)
    )
    copies = ("clone", "contiguous", "_to_copy", "copy_", "_reshape_copy")
    extra = {name: last[name] - absent[name] for name in copies}
    assert extra == {name: first[name] - absent_first[name] for name in copies}


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(8, 16, 9, 9).contiguous(memory_format=torch.channels_last),
        torch.randn(40, 300).t(),
        torch.randn(100, 200)[::2, 3:],
        torch.randn(100, 1).expand(100, 64),
        torch.randn(6_000).half(),
        torch.randn(90, 70, dtype=torch.complex64).conj(),
    ],
    ids=["channels last", "transposed", "sliced", "expanded", "half", "conjugate"],
)
def test_a_sample_is_taken_in_the_order_of_the_shape(x: Tensor) -> None:
    parts = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    flat_values = parts.reshape(-1).float()
    at = torch.arange(drift._SAMPLE) * drift._SPREAD % flat_values.numel()
    assert torch.equal(drift._sample(x), flat_values[at])


def test_a_sample_copies_nothing_but_itself() -> None:
    x = torch.randn(8, 16, 9, 9).contiguous(memory_format=torch.channels_last)
    with Ops() as ops:
        drift._sample(x)
    assert not {"clone", "contiguous", "_unsafe_view", "index"} & set(ops.seen), ops.seen


# ---------------------------------------------------------------- memory


LARGE = 60_000
"""Bytes from which on memory counts as an activation's here: below lie weights, counters, pooled patterns."""


class Live(TorchDispatchMode):
    """Knows the large pieces of memory that ops made and that are not freed yet."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[StorageWeakRef, int]] = []
        self.held: list[int] = []
        """Bytes alive after each op of the pass."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {t.untyped_storage()._cdata for t in flat((args, kwargs)) if isinstance(t, Tensor)}
        made = func(*args, **(kwargs or {}))
        for storage in (t.untyped_storage() for t in flat(made) if isinstance(t, Tensor)):
            if storage.nbytes() >= LARGE and storage._cdata not in given:
                self.made.append((StorageWeakRef(storage), storage.nbytes()))
        return made

    def note(self) -> None:
        self.made = [(ref, size) for ref, size in self.made if not ref.expired()]
        self.held.append(sum(size for _, size in self.made))


def held_by(kind: type[Observer], build: type[nn.Module], batch: Tensor, emulates: bool) -> list[int]:
    """Bytes of large tensors alive after each op of the pass, and after the pass while its run is kept."""
    live, held_inside = Live(), []
    exponents._scratch(torch.device("cpu"))  # made once in a process

    class Watched(kind):  # type: ignore[misc,valid-type]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = super().__torch_dispatch__(func, types, args, kwargs)
            held_inside.append(bool(self.stored))
            live.note()
            return made

    torch.manual_seed(0)
    workload = Workload("test", build(), (batch,), lambda m, x: m(x))
    device = torch.device("cpu")
    precision = candidate(Plan(device="cpu"), device, 1024.0) if emulates else reference(device)
    with live:
        run = run_pass(workload, batch, precision, 0, Watched)
        gc.collect()
        live.note()
    assert run.raised is None and run.backward_ran
    assert not any(held_inside)
    return live.held


@pytest.mark.parametrize("how", ["emulating", "plain", "as on a device"])
@pytest.mark.parametrize("build", [Transformer, Convolutions])
def test_nothing_large_is_held_beyond_the_op_that_made_it(
    build: type[nn.Module], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "as on a device":
        monkeypatch.setattr(exponents, "on_host", lambda x: False)
    batch = torch.zeros(32, 64, dtype=torch.long) if build is Transformer else torch.randn(8, 3, 32, 32)
    without = held_by(Unrecorded, build, batch, how == "emulating")
    assert max(without) > 10 * LARGE
    assert held_by(Observer, build, batch, how == "emulating") == without
    assert without[-1] == 0

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


def test_recording_a_pass_asks_for_no_value() -> None:
    for run in all_passes("cpu").values():
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

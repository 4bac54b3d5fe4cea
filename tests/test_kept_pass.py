"""A backward run again at another loss scale on the graph of one forward: bit for bit as a whole pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ampdoctor.load.workload import Workload
from ampdoctor.probe.passes.kept_pass import KeptPass
from ampdoctor.probe.passes.one_pass import Run, run_pass
from ampdoctor.probe.passes.precision import candidate
from ampdoctor.probe.plan import Plan
from ampdoctor.probe.watch.observer import Observer
from probe_helpers import Calls

SCALES = (1.0, 2.0**30, 65536.0, 2.0**-8)
"""With one at which FP16 overflows in between."""


def _mean(model: nn.Module, x: Any) -> Any:
    return model(x).float().square().mean()


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def _convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(),
        nn.Dropout(0.5), nn.Linear(8, 2),
    )  # fmt: skip


def _tied() -> nn.Module:
    return Calls(
        lambda self, x: torch.nn.functional.linear(self.table(x), self.table.weight),
        table=nn.Embedding(12, 6),
    )


def _recurrent() -> nn.Module:
    return Calls(lambda self, x: self.rnn(x)[0], rnn=nn.LSTM(4, 6, 2))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "encoder with dropout": (_encoder, lambda: torch.randn(2, 5, 16)),
    "convolutions with batch norm": (_convolutions, lambda: torch.randn(2, 3, 5, 5)),
    "lstm": (
        lambda: Calls(lambda self, x: self.rnn(x)[0], rnn=nn.LSTM(4, 6, 2)),
        lambda: torch.randn(3, 2, 4),
    ),
    "tied embedding": (_tied, lambda: torch.arange(12).view(3, 4)),
}


def _workload(name: str) -> Workload:
    torch.manual_seed(0)
    model, batch = (make() for make in MODELS[name])
    return Workload(name, model.train(), (batch,), _mean)


def _whole(workload: Workload, plan: Plan, scale: float) -> Run:
    precision = candidate(plan, torch.device("cpu"), scale)
    return run_pass(workload, workload.batches[0], precision, 0, Observer)


def _kept(workload: Workload, plan: Plan, scale: float = 1024.0) -> KeptPass:
    return KeptPass(workload, workload.batches[0], candidate(plan, torch.device("cpu"), scale), 0)


def _same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k].nan_to_num(), b[k].nan_to_num()) for k in a)


@pytest.mark.parametrize(
    "plan", [Plan(), Plan(dtype="bfloat16"), Plan(mode="half")], ids=["fp16", "bf16", "half"]
)
@pytest.mark.parametrize("name", MODELS)
def test_another_backward_tells_what_a_whole_pass_tells(name: str, plan: Plan) -> None:
    workload = _workload(name)
    kept = _kept(workload, plan)
    first = kept.run.observer.records()
    seen = []
    for scale in (*SCALES, 1024.0):
        run = kept.again(scale)
        assert run is not None and kept.is_open
        seen.append((run, run.observer.records()))
    assert [repr(r) for r in seen[-1][1]] == [repr(r) for r in first]
    assert _same(seen[-1][0].gradients, kept.run.gradients)
    for scale, (run, records) in zip(SCALES, seen, strict=False):
        whole = _whole(workload, plan, scale)  # closes the one that is kept
        assert not kept.is_open
        assert _same(run.gradients, whole.gradients)
        assert [repr(r) for r in records] == [repr(r) for r in whole.observer.records()]  # NaN is like NaN
        assert (run.precision, run.written) == (whole.precision, whole.written)
        assert run.loss is not None and whole.loss is not None and torch.equal(run.loss, whole.loss)


def test_a_pass_that_is_let_go_leaves_the_model_as_it_was() -> None:
    workload = _workload("convolutions with batch norm")
    before = {k: v.clone() for k, v in workload.model.state_dict().items()}
    memory = {k: v.data_ptr() for k, v in workload.model.state_dict().items()}
    kept = _kept(workload, Plan())
    kept.again(1.0)
    kept.close()
    assert {k: v.data_ptr() for k, v in workload.model.state_dict().items()} == memory
    assert _same(before, workload.model.state_dict())
    assert all(p.grad is None for p in workload.model.parameters())


class _Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 2


def _growing_hook(self: Any, x: Tensor) -> Tensor:
    y = self.fc(x)
    calls = []

    def hook(gradient: Tensor) -> Tensor | None:
        calls.append(1)
        return gradient * 2 if len(calls) > 1 else None

    y.register_hook(hook)
    return y * y


ITS_OWN: dict[str, Callable[[Any, Tensor], Any]] = {
    "a Function": lambda self, x: _Twice.apply(self.fc(x)),
    "a hook": lambda self, x: _hooked(self.fc(x)),
    "a checkpoint": lambda self, x: checkpoint(lambda y: self.fc(y).tanh(), x, use_reentrant=False),
    "a reentrant checkpoint": lambda self, x: checkpoint(
        lambda y: self.fc(y).tanh(), x.requires_grad_(), use_reentrant=True
    ),
}


def _hooked(y: Tensor) -> Tensor:
    y.register_hook(lambda gradient: gradient * 2)
    return y * y


@pytest.mark.parametrize("what", ITS_OWN)
def test_a_backward_with_code_of_the_user_is_not_run_again(what: str) -> None:
    model = Calls(ITS_OWN[what], fc=nn.Linear(3, 3))
    kept = _kept(Workload(what, model, (torch.ones(2, 3),), _mean), Plan())
    assert kept.run.backward_ran
    assert not kept.is_open


def test_a_hook_that_acts_only_the_second_time_is_seen_then() -> None:
    model = Calls(_growing_hook, fc=nn.Linear(3, 3))
    kept = _kept(Workload("hook", model, (torch.ones(2, 3),), _mean), Plan())
    assert kept.is_open
    assert kept.again(1.0) is None
    assert not kept.is_open

"""Scans of models that raise, and scans that are interrupted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ampdoctor.errors import ConfigError, LoadError, ProbeError
from probe_helpers import Calls, pass_of, records, traced
from scan_models import X, linear, runs

# ---------------------------------------------------------------- exceptions


def always_raises(self: Calls, x: Tensor) -> Tensor:
    raise ValueError("this model is broken")


def test_a_model_that_raises_in_float32_too_has_nothing_to_compare() -> None:
    with pytest.raises(ProbeError) as caught:
        traced(Calls(lambda self, x: self.inner(x), inner=Calls(always_raises)))
    error = caught.value
    assert error.message == "the model raises in FP32 as well: ValueError: this model is broken"
    assert error.hint.startswith("in inner, forward, at ")
    assert 'raise ValueError("this model is broken")' in error.user_traceback
    assert "ampdoctor/probe" not in error.user_traceback
    assert error.exit_code == 3


def test_a_model_that_exits_is_a_model_that_raises() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        raise SystemExit(4)

    with pytest.raises(ProbeError, match="SystemExit: 4"):
        traced(Calls(forward))


def test_a_model_that_cannot_be_recorded_is_not_called_broken() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        if torch._C._len_torch_dispatch_stack():
            raise NotImplementedError("no modes here")
        return x

    with pytest.raises(ProbeError, match="runs in FP32, and cannot while its ops are recorded") as caught:
        traced(Calls(forward))
    assert "no modes here" in caught.value.message


def test_a_model_that_raises_in_half_precision_only_is_a_finding() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        h = self.linear(x)
        if h.dtype == torch.float16:
            raise TypeError("float32 only")
        return h

    model = Calls(lambda self, x: self.inner(x), inner=Calls(forward, linear=linear()))
    trace = traced(model)
    assert pass_of(trace, "reference").raised is None
    raised = pass_of(trace).raised
    assert raised is not None
    assert (raised.type, raised.message, raised.phase, raised.module, raised.op) == (
        "TypeError", "float32 only", "forward", "inner", "",
    )  # fmt: skip
    assert raised.source is not None
    assert raised.source.text == 'raise TypeError("float32 only")'
    assert (raised.constant, raised.emulated_refusal) == (None, False)
    assert records(pass_of(trace), "addmm") != []  # what ran before is kept
    assert not pass_of(trace).backward_ran


def test_a_number_that_half_precision_cannot_hold() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        scores = self.linear(x)
        return scores.masked_fill(x > 0, -1e9)

    raised = pass_of(traced(Calls(forward, linear=linear()))).raised
    assert raised is not None
    assert (raised.type, raised.op, raised.constant) == ("RuntimeError", "aten::masked_fill", -1e9)
    assert raised.source is not None
    assert raised.source.text == "return scores.masked_fill(x > 0, -1e9)"


def test_an_op_that_cuda_refuses() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return F.binary_cross_entropy(model(x).sigmoid(), torch.ones(2, 4))

    raised = pass_of(traced(linear(), X, loss=loss)).raised
    assert raised is not None
    assert raised.emulated_refusal
    assert raised.source is not None
    assert raised.source.text == "return F.binary_cross_entropy(model(x).sigmoid(), torch.ones(2, 4))"


class RefusesHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        if gradients[0].dtype == torch.float16:
            raise TypeError("float32 gradients only")
        return gradients[0]


def test_a_backward_that_raises_in_half_precision_only() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        return RefusesHalf.apply(self.linear(x))

    raised = pass_of(traced(Calls(forward, linear=linear()))).raised
    assert raised is not None
    assert (raised.type, raised.phase, raised.message) == ("TypeError", "backward", "float32 gradients only")


def test_a_loss_that_is_none_is_the_loaders_to_refuse() -> None:
    refusal = LoadError("the model returned text, not a loss")

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        raise refusal

    with pytest.raises(LoadError) as caught:
        traced(linear(), X, loss=loss)
    assert caught.value is refusal


def test_memory_that_runs_out() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore")

    with pytest.raises(ProbeError) as caught:
        traced(Calls(forward))
    assert caught.value.message == (
        "out of memory while measuring (FP32 reference, batch 0), in forward of the reference pass: "
        "CUDA out of memory. Tried to allocate 2 GiB"
    )


CPU_SAYS = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
    "allocate 4398046511104 bytes. Error code 12 (Cannot allocate memory)"
)


@pytest.mark.parametrize(
    ("place", "doing"),
    [
        (
            "ampdoctor.probe.watch.tally.Tally.add",
            "while measuring (FP32 reference, batch 0), recording aten::",
        ),
        ("ampdoctor.probe.passes.one_pass.batch_copy", "while measuring (FP32 reference, batch 0):"),
        ("ampdoctor.probe.passes.precision.working_copy", "while measuring (FP32 reference, batch 0):"),
        ("ampdoctor.probe.watch.observer.Observer.records", "while measuring (FP32 reference, batch 0):"),
        ("ampdoctor.probe.passes.comparison.compare_gradients", "while measuring (FP32 reference, batch 0):"),
        (
            "ampdoctor.probe.passes.precision.Precision.cast_input",
            "while measuring (FP32 reference, batch 0), in forward of",
        ),
    ],
)
def test_memory_that_runs_out_in_our_own_work(
    place: str, doing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*arguments: object, **keywords: object) -> None:
        raise RuntimeError(CPU_SAYS)

    monkeypatch.setattr(place, no_memory)
    with pytest.raises(ProbeError, match="out of memory") as caught:
        traced(linear(), X)
    assert caught.value.message.startswith(f"out of memory {doing}")
    assert caught.value.message.endswith(CPU_SAYS)
    assert "smaller batch" in caught.value.hint


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="no CUDA device"):
        traced(linear(), device="cuda")


@pytest.mark.parametrize("lazy", [nn.LazyLinear(3), nn.Sequential(nn.LazyBatchNorm1d())])
def test_a_lazy_module_must_have_run_once(lazy: nn.Module) -> None:
    with pytest.raises(ProbeError, match=r"not complete: .*lazy module"):
        traced(lazy)


def test_a_lazy_module_that_has_run_once() -> None:
    model = nn.LazyLinear(3)
    model(X)
    assert [p.numel for p in pass_of(traced(model)).parameters] == [12, 3]


def test_a_model_without_values() -> None:
    with torch.device("meta"):
        model = nn.Linear(4, 4)
    with pytest.raises(ProbeError, match="no values: weight is on the meta device"):
        traced(model)


# ---------------------------------------------------------------- interruptions


class Interrupts(nn.Module):
    """Ctrl-C comes during its call number ``at``, in forward or in backward."""

    def __init__(self, at: int, backward: bool = False) -> None:
        super().__init__()
        self.linear = linear()
        self.at, self.backward = at, backward
        self.calls = iter(range(1, 1000))

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x)
        if next(self.calls) == self.at:
            if not self.backward:
                raise KeyboardInterrupt
            h.register_hook(self.interrupt)
        return h * 2.0

    def interrupt(self, gradient: Tensor) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    ("at", "kept"),
    [
        (1, [("reference", 0, True)]),
        (2, [("reference", 0, False), ("candidate", 0, True)]),
    ],
)
def test_what_ran_before_an_interruption_is_kept(
    at: int, kept: list[tuple[str, int, bool]], backward: bool
) -> None:
    trace = traced(Interrupts(at, backward))
    assert trace.interrupted
    assert [(p.role, p.batch, p.interrupted) for p in trace.passes] == kept
    last = trace.passes[-1]
    assert [r.site.op for r in records(last, "addmm")] == ["aten::addmm"]
    assert (last.loss is None) is (not backward)
    assert not last.backward_ran


def test_an_interruption_of_a_later_batch_keeps_the_earlier_ones() -> None:
    # Calls 1 to 3 are the first batch's: reference, candidate, and the candidate with nothing recorded.
    trace = traced(Interrupts(4), X, X)
    assert [(p.role, p.batch, p.interrupted) for p in trace.passes] == [
        ("reference", 0, False),
        ("candidate", 0, False),
        ("reference", 1, True),
    ]
    assert trace.interrupted and trace.deterministic is True


def test_an_interruption_of_the_check_keeps_both_passes() -> None:
    trace = traced(Interrupts(3))
    assert runs(trace) == [("reference", 0), ("candidate", 0)]
    assert trace.interrupted and trace.deterministic is None


def test_an_interrupted_second_look_says_what_it_saw() -> None:
    class Overflows(Interrupts):
        def forward(self, x: Tensor) -> Tensor:
            high = x.half() * x.half()
            return super().forward(x) + high.float()

    # Call 3 is the second look.
    trace = traced(Overflows(3), X * 300.0)
    assert trace.interrupted
    assert runs(trace) == [("reference", 0), ("candidate", 0)]
    assert [b.site.op for b in trace.births if b.site is not None] == ["aten::mul"]


def test_an_interrupted_search_tries_no_further_scale() -> None:
    model = Interrupts(5)
    trace = traced(model, search_scale=True, loss_scale=65536.0)
    assert trace.interrupted
    assert next(model.calls) == 6
    assert trace.scale_runs == ()

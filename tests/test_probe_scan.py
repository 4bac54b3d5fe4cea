"""Whole probes: models that raise, that are interrupted, that have no gradients, and that are odd."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator
from datetime import date
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ampdoctor.diagnose.engine import diagnose
from ampdoctor.diagnose.policy import Policy
from ampdoctor.errors import ConfigError, LoadError, ProbeError
from ampdoctor.facts.trace import Trace
from ampdoctor.probe.plan import Plan
from ampdoctor.probe.scan import probe
from probe_helpers import Calls, pass_of, records, summed, traced, workload

X = torch.ones(2, 4)


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, 4)


def runs(trace: Trace) -> list[tuple[str, int]]:
    return [(p.role, p.batch) for p in trace.passes]


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
        "out of memory in the reference pass: CUDA out of memory. Tried to allocate 2 GiB"
    )


CPU_SAYS = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
    "allocate 4398046511104 bytes. Error code 12 (Cannot allocate memory)"
)


@pytest.mark.parametrize(
    ("place", "doing"),
    [
        ("ampdoctor.probe.watch.tally.Tally.add", "while recording aten::"),
        ("ampdoctor.probe.passes.one_pass.batch_copy", "while measuring"),
        ("ampdoctor.probe.passes.precision.working_copy", "while measuring"),
        ("ampdoctor.probe.watch.observer.Observer.records", "while measuring"),
        ("ampdoctor.probe.passes.comparison.compare_gradients", "while measuring"),
        ("ampdoctor.probe.passes.precision.Precision.cast_input", "in the reference pass"),
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


# ---------------------------------------------------------------- without gradients


def test_forward_only() -> None:
    trace = traced(linear(), forward_only=True, loss=lambda m, x: {"out": m(x)})
    assert trace.environment.forward_only
    assert [(p.loss, p.backward_ran, p.parameters) for p in trace.passes] == [(None, False, ())] * 2
    assert records(pass_of(trace), phase="backward") == []


def test_no_parameter_requires_a_gradient() -> None:
    trace = traced(linear().requires_grad_(False))
    assert trace.environment.trainable_parameters == 0
    assert [(p.loss is None, p.backward_ran, p.parameters) for p in trace.passes] == [(False, False, ())] * 2


def test_a_loss_that_depends_on_no_parameter() -> None:
    trace = traced(linear(), loss=lambda m, x: m(x).detach().sum())
    assert trace.environment.trainable_parameters == 20
    assert [(p.backward_ran, p.parameters) for p in trace.passes] == [(False, ())] * 2


def test_a_parameter_that_takes_no_part_has_no_gradient() -> None:
    trace = traced(Calls(lambda self, x: self.used(x), used=linear(), unused=linear()))
    assert [p.name for p in pass_of(trace).parameters] == ["used.weight", "used.bias"]


# ---------------------------------------------------------------- weights and buffers cast to half


class Shifted(nn.Module):
    """The identity, times a weight, plus a buffer."""

    def __init__(self, weight: list[float], shift: list[float]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))
        self.register_buffer("shift", torch.tensor(shift))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight + self.shift


@pytest.mark.parametrize(
    ("weight", "shift", "name", "index"),
    [
        ([1.0, 1e5], [0.0, 0.0], "parameter inner.weight", 1),
        ([1.0, 1.0], [1e5, 0.0], "buffer inner.shift", 0),
    ],
)
def test_what_the_cast_of_a_weight_or_buffer_makes_infinite_is_an_overflow(
    weight: list[float], shift: list[float], name: str, index: int
) -> None:
    model = Calls(lambda self, x: self.inner(x), inner=Shifted(weight, shift))
    trace = traced(model, torch.ones(2, 2), mode="half")
    (birth,) = (b for b in trace.births if not b.parents)
    assert (birth.origin, birth.name, birth.value) == ("op", name, "inf")
    assert birth.site is not None
    assert (birth.site.module, birth.site.op) == ("inner", "aten::_to_copy")
    assert (birth.exact_value, birth.rerun, birth.index, birth.samples) == (1e5, "finite", (index,), None)
    report = diagnose(trace, Policy(today=date(2026, 1, 1)))
    assert report.verdict == "forward-overflow"
    assert [f.message for f in report.findings if f.severity == "error"] == [
        f"{name} holds 100,000; FP16 ends at 65,504."
    ]


def test_a_weight_that_is_infinite_as_built_is_bad_input() -> None:
    trace = traced(Shifted([1.0, float("inf")], [0.0, 0.0]), torch.ones(2, 2), mode="half")
    assert [(b.origin, b.name) for b in trace.births] == [("parameter", "weight")]


def test_a_mask_that_the_cast_makes_infinite_and_a_softmax_takes_in_is_harmless() -> None:
    model = Calls(lambda self, x: torch.softmax(self.inner(x), -1), inner=Shifted([1.0, 1.0], [0.0, -1e9]))
    report = diagnose(traced(model, torch.ones(2, 2), mode="half"), Policy(today=date(2026, 1, 1)))
    assert (report.verdict, {f.severity for f in report.findings}) == ("clean", {"info"})


class TimesAMillion(torch.autograd.Function):
    """The identity; its gradient is too large for FP16."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 1e6


def test_a_fault_in_a_backward_written_by_hand_is_reported_at_its_line() -> None:
    model = Calls(lambda self, x: TimesAMillion.apply(self.inner(x)), inner=linear())
    report = diagnose(traced(model, mode="half"), Policy(today=date(2026, 1, 1)))
    fault = report.first_fault
    assert fault is not None and fault.source is not None and fault.backward_source is not None
    assert fault.source.text == "return x.clone()"  # as for every op of backward: the forward line
    assert fault.backward_source.text == "return gradients[0] * 1e6"
    lines = [f.source and f.source.text for f in report.findings if f.op == "aten::mul"]
    assert lines == ["return gradients[0] * 1e6"]


# ---------------------------------------------------------------- several batches


def test_each_batch_has_its_passes_and_a_second_look_where_it_needs_one() -> None:
    sound, bad = torch.ones(2, 4), torch.full((2, 4), 300.0)
    trace = traced(Calls(lambda self, x: x * x), sound, bad, sound, mode="half")
    assert runs(trace) == [(role, batch) for batch in range(3) for role in ("reference", "candidate")]
    assert [b.batch for b in trace.births] == [1]
    assert [p.loss for p in trace.passes] == [8.0, 8.0, 720000.0, float("inf"), 8.0, 8.0]


def test_progress_counts_passes() -> None:
    seen: list[tuple[str, int, int]] = []
    plan = Plan(loss_scale=1.0, search_scale=False)
    probe(workload(linear(), X, X), plan, lambda *step: seen.append(step))
    assert seen[:4] == [
        ("FP32 reference, batch 0", 0, 4),
        ("float16 candidate, batch 0", 1, 4),
        ("FP32 reference, batch 1", 2, 4),
        ("float16 candidate, batch 1", 3, 4),
    ]


# ---------------------------------------------------------------- the same again


def test_dropout_draws_the_same_again() -> None:
    trace = traced(Calls(lambda self, x: F.dropout(self.linear(x), 0.5), linear=linear()))
    assert (trace.deterministic, trace.observer_changed_loss) == (True, False)


def test_noise_from_outside_is_not_deterministic() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        return self.linear(x).float() + int.from_bytes(os.urandom(8), "little") / 2**64

    trace = traced(Calls(forward, linear=linear()))
    assert (trace.deterministic, trace.observer_changed_loss) == (False, None)


def test_a_loss_that_only_the_recording_changes() -> None:
    # As a kernel does that runs another way where it is watched; only recorded passes come to backward.
    class Changes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = linear()

        def forward(self, x: Tensor) -> Tensor:
            recording = any(type(m).__name__ == "Observer" for m in _modes())
            return self.linear(x) + float(recording)

    trace = traced(Changes())
    assert (trace.deterministic, trace.observer_changed_loss) == (True, True)


def _modes() -> list[Any]:
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    return list(_get_current_dispatch_mode_stack())


# ---------------------------------------------------------------- odd models


def checked(model: nn.Module, batch: Any = X, loss: Callable[..., Any] = summed, **plan: Any) -> Trace:
    """The trace of a model that runs in both passes, is deterministic and has nothing to find."""
    trace = traced(model, batch, loss=loss, **plan)
    assert [p.raised for p in trace.passes] == [None, None]
    assert (trace.births, trace.opaque_ops, trace.deterministic) == ((), (), True)
    assert all(p.loss is not None for p in trace.passes)
    return trace


def test_inference_mode_inside() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        with torch.inference_mode():
            scale = self.linear(x)
            scale.mul_(0.0)
            scale[0].add_(1.0)
        return self.linear(x) * scale.clone().float().sum()  # 4 ones

    trace = checked(Calls(forward, linear=linear()))
    scales = records(pass_of(trace, "reference"), "sum", "forward")
    assert scales[0].stats.absmax == 4.0


def test_a_double_precision_model_keeps_its_precision_in_the_reference() -> None:
    model = Calls(lambda self, x: (self.linear(x) * 1e60) * 1e-60, linear=linear()).double()
    trace = traced(model, X.double(), loss=lambda m, x: m(x).sum(), mode="none")
    assert [p.loss_dtype for p in trace.passes] == ["float64", "float64"]
    assert trace.passes[0].loss == trace.passes[1].loss
    assert {r.stats.dtype for r in trace.passes[0].sites} == {"float64"}


def test_a_model_that_is_bfloat16_as_built() -> None:
    trace = checked(linear().bfloat16(), X.bfloat16(), mode="none", dtype="bfloat16")
    assert {r.stats.dtype for r in records(pass_of(trace), "addmm")} == {"bfloat16"}
    assert {r.stats.dtype for r in records(pass_of(trace, "reference"), "addmm")} == {"float32"}
    assert trace.environment.emulates == "cuda"


def test_data_parallel_without_a_gpu() -> None:
    trace = checked(nn.DataParallel(linear()))
    assert [r.site.module for r in records(pass_of(trace), "addmm")] == ["module"]


def test_parameters_that_are_views_of_one_tensor() -> None:
    base = torch.eye(4)

    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.upper, self.lower = nn.Parameter(base[:2]), nn.Parameter(base[2:])

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.upper.T + x @ self.lower.T

    trace = checked(Views())
    assert [(p.name, p.absmax) for p in pass_of(trace).parameters] == [("upper", 2.0), ("lower", 2.0)]
    assert torch.equal(base, torch.eye(4))


def test_a_module_that_holds_itself_in_a_list() -> None:
    model = Calls(lambda self, x: self.me[0].linear(x), linear=linear())
    model.me = [model]
    assert [m.path for m in checked(model).modules] == ["", "linear"]


def test_a_very_deep_module() -> None:
    model: nn.Module = linear()
    for level in range(100):
        inner, model = model, nn.Sequential()
        model.add_module(f"level_{level}", inner)
    path = ".".join(f"level_{level}" for level in reversed(range(100)))
    assert [r.site.module for r in records(pass_of(checked(model)), "addmm")] == [path]


def test_a_module_whose_forward_is_a_generator() -> None:
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = linear()

        def forward(self, x: Tensor) -> Iterator[Tensor]:
            for row in x:
                yield self.linear(row) * 2.0

    trace = checked(Calls(lambda self, x: torch.stack(list(self.rows(x))), rows=Rows()))
    # A generator runs after the call has returned: its own ops are the caller's, its layers' are theirs.
    assert [r.site.module for r in records(pass_of(trace), "addmm")] == ["rows.linear"] * 2
    assert [r.site.module for r in records(pass_of(trace), "mul", "forward")] == [""] * 2


def test_a_forward_that_uses_a_thread() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        found: list[Tensor] = []
        thread = threading.Thread(target=lambda: found.append(self.elsewhere(x)))
        thread.start()
        thread.join()
        return found[0] + self.here(x)

    trace = checked(Calls(forward, elsewhere=linear(), here=linear()))
    assert [r.site.module for r in records(pass_of(trace), "addmm")] == ["here"]
    assert [p.name for p in pass_of(trace).parameters if p.absmax] == [
        "elsewhere.weight", "elsewhere.bias", "here.weight", "here.bias",
    ]  # fmt: skip
    assert {m.path: m.opaque for m in trace.modules} == {"": False, "elsewhere": True, "here": False}


def test_vmap_and_grad_inside() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        slopes = torch.func.vmap(torch.func.grad(lambda row: self.linear(row).float().sum()))(x)
        return self.linear(x) + slopes

    assert records(pass_of(checked(Calls(forward, linear=linear()))), phase="forward") != []


def test_a_fourier_transform() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(self.linear(x).float())
        # Times 2, so that backward begins with a tensor of its own: torch 2.6 refuses an expanded one here.
        return torch.fft.irfft(spectrum * spectrum.conj(), n=4) * 2.0

    trace = checked(Calls(forward, linear=linear()))
    (made,) = records(pass_of(trace), "_fft_r2c", "forward")
    assert made.stats.shape == (2, 3, 2)  # the real and the imaginary part of three frequencies


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
@pytest.mark.parametrize("mode", ["autocast", "none"])
def test_nested_tensors(layout: torch.layout, mode: str) -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        rows = torch.nested.nested_tensor([x[:1], x], layout=layout)
        return torch.nested.to_padded_tensor(self.linear(rows), 0.0)

    trace = traced(Calls(forward, linear=linear()), mode=mode)
    assert [p.raised for p in trace.passes] == [None, None]
    assert [p.name for p in pass_of(trace).parameters] == ["linear.weight", "linear.bias"]


class Labelled(Tensor):
    """A tensor subclass that only adds a name."""


def test_a_tensor_subclass() -> None:
    trace = checked(Calls(lambda self, x: self.linear(x.as_subclass(Labelled)) * 2.0, linear=linear()))
    assert len(records(pass_of(trace), "mul", "forward")) == 1


def test_a_quantised_model() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = torch.ao.quantization.quantize_dynamic(nn.Sequential(linear(), nn.ReLU()), {nn.Linear})
        trace = traced(model)
    assert trace.opaque_ops == ("quantized::linear_dynamic",)
    assert [p.raised for p in trace.passes] == [None, None]
    (made,) = records(pass_of(trace), "quantized::linear_dynamic")
    assert made.site.module == "0"


def test_a_forward_that_sets_seed_and_default_dtype() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        torch.manual_seed(5)
        torch.set_default_dtype(torch.float64)
        return F.dropout(self.linear(x)) + torch.ones(4)

    assert {r.stats.dtype for r in records(pass_of(checked(Calls(forward, linear=linear()))), "ones")} == {
        "float64"
    }


def test_a_gradient_penalty() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        y = model(x).float().sum()
        (slope,) = torch.autograd.grad(y, x, create_graph=True)
        return (slope.float().norm(dim=1) - 1.0).square().mean() + y

    trace = checked(nn.Sequential(linear(), nn.Tanh(), linear()), loss=loss)
    of_slopes = records(pass_of(trace, "reference"), "tanh_backward")
    assert {(r.site.phase, r.site.module) for r in of_slopes} == {("backward", "1")}


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_torchs_own_detector_does_not_cut_the_backward_short() -> None:
    model = Calls(lambda self, x: (self.linear(x) * 0.0).sqrt() * 0.0, linear=linear())
    with torch.autograd.set_detect_anomaly(True):
        trace = traced(model)
        assert torch.is_anomaly_enabled()
    assert [(p.raised, p.backward_ran) for p in trace.passes] == [(None, True)] * 2
    assert any(b.reaches_gradients for b in trace.births)  # 0 * (1 / sqrt(0))


def test_autocast_switched_off_for_cuda_is_switched_off_where_cuda_is_emulated() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        low = self.linear(x)
        with torch.autocast("cuda", enabled=False):
            high = self.linear(x)
        return low + high

    trace = checked(Calls(forward, linear=linear()))
    assert [r.stats.dtype for r in records(pass_of(trace), "addmm")] == ["float16", "float32"]


def test_complex_and_double_gradients_are_compared_in_full() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.turn = nn.Parameter(torch.tensor([3.0 + 4.0j]))
            self.tiny = nn.Parameter(torch.tensor([1.0], dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return (self.turn * torch.tensor([1.0j])).real + self.tiny * 1e-60

    trace = traced(Both(), torch.ones(1), loss=lambda m, x: m(x).sum(), mode="none")
    turn, tiny = pass_of(trace).parameters
    # Re(i z) = -y, so the gradient is 0 in the real part and -1 in the imaginary one.
    assert (turn.numel, turn.absmax, turn.zeros, turn.reference_nonzero, turn.lost) == (2, 1.0, 1, 1, 0)
    assert (tiny.dtype, tiny.absmax, tiny.lost, tiny.relative_error) == ("float64", 1e-60, 0, 0.0)


# ---------------------------------------------------------------- the caller's autocast


def test_passes_under_the_callers_autocast_cast_their_own_weights() -> None:
    def casts(trace: Trace) -> list[int]:
        return [
            sum(r.site.op == "aten::_to_copy" for r in p.sites) for p in trace.passes if p.role == "candidate"
        ]

    model = Calls(lambda self, x: self.inner(x), inner=linear())
    batches = (torch.ones(3, 4), torch.ones(3, 4))
    alone = traced(model, *batches)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        within = traced(model, *batches)
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16
    assert not torch.is_autocast_enabled("cpu")
    assert torch.autocast_increment_nesting() == 1
    assert torch.autocast_decrement_nesting() == 0
    first, second = casts(alone)
    assert first == second > 0
    assert casts(within) == [first, second]

"""Scans of models that do unusual things."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ampdoctor.facts.trace import Trace
from probe_helpers import Calls, pass_of, records, summed, traced
from scan_models import X, linear


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

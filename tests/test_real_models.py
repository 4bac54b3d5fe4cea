"""What real models do to a probe: every container, every kind of tensor, every way of running a module.

Each test scans a small model of one kind. ``scan`` checks besides that the model is left exactly as it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers.utils import ModelOutput

from ampdoctor.config import Config
from case_runner import candidate, codes, lines_of, ops_of, run_config, scan, warnings_of

Loss = Callable[[nn.Module, Any], Tensor]


def mean_square(output: Tensor) -> Tensor:
    return output.float().square().mean()


# ---------------------------------------------------------------- containers


@dataclass
class Packed:
    hidden: Tensor
    extra: list[Tensor]


@dataclass
class NamedOutput(ModelOutput):
    hidden: Tensor | None = None
    extra: Tensor | None = None


class Inner(nn.Module):
    """A layer that returns the container ``pack`` makes; a large ``gain`` makes it leave FP16's range."""

    def __init__(self, pack: Callable[[Tensor], Any], gain: float) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.pack = pack
        self.gain = gain

    def forward(self, x: Tensor) -> Any:
        return self.pack(self.linear(x) * self.gain)


class Outer(nn.Module):
    def __init__(self, pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor], gain: float) -> None:
        super().__init__()
        self.inner = Inner(pack, gain)
        self.head = nn.Linear(4, 1)
        self.unpack = unpack

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.unpack(self.inner(x)))


CONTAINERS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "dict": (lambda h: {"hidden": h, "none": None, "name": "x"}, lambda out: out["hidden"]),
    "list": (lambda h: [h, None, 3], lambda out: out[0]),
    "nested": (lambda h: ({"deep": [h]}, ()), lambda out: out[0]["deep"][0]),
    "dataclass": (lambda h: Packed(h, [h]), lambda out: out.hidden),
    "ModelOutput": (lambda h: NamedOutput(hidden=h), lambda out: out.hidden),
    "generator": (lambda h: (part for part in h.unbind(0)), lambda out: torch.stack(list(out))),
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_a_module_may_return_any_container(kind: str) -> None:
    torch.manual_seed(0)
    trace, report = scan(
        Outer(*CONTAINERS[kind], gain=1.0),
        torch.randn(3, 4),
        lambda m, x: mean_square(m(x)),
        loss_scale=1024.0,
    )
    assert report.verdict == "clean"
    assert {"inner.linear", "inner", "head"} <= {r.site.module for r in candidate(trace).sites}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_an_inf_in_any_container_is_found_where_it_is_born(kind: str) -> None:
    torch.manual_seed(0)
    _, report = scan(Outer(*CONTAINERS[kind], gain=1e6), torch.randn(3, 4), lambda m, x: mean_square(m(x)))
    assert report.verdict == "forward-overflow"
    assert report.first_fault is not None
    assert (report.first_fault.module, report.first_fault.op) == ("inner", "aten::mul")
    assert report.first_fault.source is not None
    assert report.first_fault.source.text == "return self.pack(self.linear(x) * self.gain)"


class TakesKeywords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, *, x: Tensor, mask: Tensor | None = None) -> Tensor:
        out = self.linear(x)
        return out if mask is None else out * mask


@pytest.mark.parametrize(
    ("batch", "loss"),
    [
        ({"x": torch.ones(2, 4), "mask": torch.ones(2, 1)}, lambda m, b: mean_square(m(**b))),
        ([torch.ones(2, 4), [torch.ones(2, 1)]], lambda m, b: mean_square(m(x=b[0], mask=b[1][0]))),
        (
            Packed(torch.ones(2, 4), [torch.ones(2, 1)]),
            lambda m, b: mean_square(m(x=b.hidden, mask=b.extra[0])),
        ),
        (NamedOutput(hidden=torch.ones(2, 4)), lambda m, b: mean_square(m(x=b.hidden))),
        (("text", 3, None, torch.ones(2, 4)), lambda m, b: mean_square(m(x=b[3]))),
    ],
    ids=["dict", "list", "dataclass", "ModelOutput", "tuple-with-text"],
)
@pytest.mark.parametrize("mode", ["autocast", "half"])
def test_a_batch_may_be_any_container(batch: Any, loss: Loss, mode: str) -> None:
    torch.manual_seed(0)
    _, report = scan(TakesKeywords(), batch, loss, mode=mode, loss_scale=64.0)
    assert report.verdict == "clean"


# ---------------------------------------------------------------- kinds of tensors


class ManyKinds(nn.Module):
    """Makes booleans, integers, complex numbers, an empty tensor and a 0-dimensional one on its way."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x)
        positive = h > 0
        order = h.argsort(-1)
        spectrum = torch.fft.rfft(h.float())
        nothing = h[:0]
        h = torch.where(positive, h, h * self.scale).gather(-1, order)
        return torch.cat([h, nothing]).float() + spectrum.abs().mean() + positive.sum()


def test_bool_integer_complex_empty_and_zero_dimensional_tensors() -> None:
    torch.manual_seed(0)
    trace, report = scan(ManyKinds(), torch.randn(3, 8), lambda m, x: mean_square(m(x)), loss_scale=64.0)
    assert report.verdict == "clean"
    assert warnings_of(report) == []
    scale = next(p for p in candidate(trace).parameters if p.name == "scale")
    assert scale.numel == 1
    assert scale.nan == scale.inf == 0


def test_a_complex_parameter_is_measured() -> None:
    class Spectral(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(5, dtype=torch.complex64))

        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.irfft(torch.fft.rfft(x) * self.weight, n=8)

    torch.manual_seed(0)
    model, x = Spectral(), torch.randn(3, 8)
    trace, report = scan(model, x, lambda m, x: mean_square(m(x)), loss_scale=64.0)
    assert report.verdict == "clean"
    (gradient,) = candidate(trace).parameters
    mean_square(model(x)).backward()
    assert model.weight.grad is not None
    parts = torch.view_as_real(model.weight.grad)  # a real and an imaginary number for each element
    assert (gradient.name, gradient.numel) == ("weight", 10)
    assert gradient.absmax == pytest.approx(float(parts.abs().max()), rel=1e-3)
    assert gradient.relative_error is not None and gradient.relative_error < 1e-2


def test_an_empty_batch_has_no_value_and_no_fault() -> None:
    _, report = scan(nn.Linear(4, 2), torch.zeros(0, 4), lambda m, x: m(x).float().sum(), loss_scale=1.0)
    assert report.verdict in ("clean", "not-measured")


# ---------------------------------------------------------------- modules, parameters, views


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.tanh(self.cell(x))
        return x


def test_a_shared_module_has_one_record_and_three_calls() -> None:
    torch.manual_seed(0)
    trace, report = scan(Recurrent(), torch.randn(2, 4), lambda m, x: mean_square(m(x)), loss_scale=64.0)
    assert report.verdict == "clean"
    cell = next(m for m in trace.modules if m.path == "cell")
    assert (cell.type, cell.calls, cell.parameters) == ("Linear", 3, 20)
    calls = [r.site.nth for r in candidate(trace).sites if r.site.op == "aten::addmm"]
    assert calls == [0, 1, 2]


def test_one_module_under_two_names() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.second = self.first

        def forward(self, x: Tensor) -> Tensor:
            return self.second(torch.tanh(self.first(x)))

    torch.manual_seed(0)
    trace, report = scan(Twice(), torch.randn(2, 4), lambda m, x: mean_square(m(x)), loss_scale=64.0)
    assert report.verdict == "clean"
    assert "AMP902" not in codes(report)
    assert {r.site.module for r in candidate(trace).sites if r.site.op == "aten::addmm"} == {"first"}


def test_tied_weights_are_one_parameter() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(10, 4)
            self.head = nn.Linear(4, 10, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.embed(tokens))

    torch.manual_seed(0)
    trace, report = scan(
        Tied(),
        torch.arange(10),
        lambda m, tokens: F.cross_entropy(m(tokens).float(), tokens),
        loss_scale=1024.0,
    )
    assert report.verdict == "clean"
    assert [(p.name, p.numel) for p in candidate(trace).parameters] == [("embed.weight", 40)]
    assert trace.environment.trainable_parameters == 40


class InPlace(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x).clone()
        left, right = h[:, :2], h[:, 2:]
        left.mul_(self.factor)
        right.add_(1.0)
        return F.relu(h.t().reshape(4, -1), inplace=True)


def test_in_place_ops_on_views_are_followed() -> None:
    torch.manual_seed(0)
    _, report = scan(InPlace(2.0), torch.randn(3, 4), lambda m, x: mean_square(m(x)), loss_scale=64.0)
    assert report.verdict == "clean"


def test_an_in_place_overflow_is_born_at_its_op_and_reaches_the_loss_through_the_base() -> None:
    torch.manual_seed(0)
    _, report = scan(InPlace(1e6), 10 * torch.randn(3, 4), lambda m, x: mean_square(m(x)), loss_scale=64.0)
    assert report.verdict == "forward-overflow"
    assert report.first_fault is not None
    assert (report.first_fault.module, report.first_fault.op) == ("", "aten::mul_")
    assert report.first_fault.source is not None
    assert report.first_fault.source.text == "left.mul_(self.factor)"


# ---------------------------------------------------------------- autograd


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.gain = gain
        return x * x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return grad * (3 * x * x) * ctx.gain, None


class UsesCube(nn.Module):
    def __init__(self, gain: float) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.gain = gain

    def forward(self, x: Tensor) -> Tensor:
        return Cube.apply(self.linear(x), self.gain)


def test_a_custom_function_is_seen_inside() -> None:
    torch.manual_seed(0)
    trace, report = scan(UsesCube(1.0), torch.randn(3, 4), lambda m, x: mean_square(m(x)), loss_scale=64.0)
    assert report.verdict == "clean"
    assert ops_of(trace, "forward", "").count("aten::mul") == 2
    assert ops_of(trace, "backward", "").count("aten::mul") >= 4
    assert "return x * x * x" in lines_of(trace, "backward")  # backward ops carry their forward's line


def test_an_overflow_in_a_custom_backward_has_the_line_of_its_forward_and_its_own() -> None:
    torch.manual_seed(0)
    trace, report = scan(UsesCube(1e7), torch.randn(3, 4), lambda m, x: mean_square(m(x)), loss_scale=64.0)
    assert report.first_fault is not None
    assert (report.first_fault.phase, report.first_fault.op) == ("backward", "aten::mul")
    assert report.first_fault.source is not None
    assert report.first_fault.source.text == "return x * x * x"
    own = trace.births[0].backward_source
    assert own is not None
    assert own.text == "return grad * (3 * x * x) * ctx.gain, None"


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool, gain: float = 1.0) -> None:
        super().__init__()
        self.enter = nn.Linear(4, 4)
        self.block = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
        self.leave = nn.Linear(4, 1)
        self.reentrant = reentrant
        with torch.no_grad():
            self.block[2].weight *= gain

    def forward(self, x: Tensor) -> Tensor:
        h = checkpoint(self.block, self.enter(x), use_reentrant=self.reentrant)
        return self.leave(h)


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "non-reentrant"])
def test_activation_checkpointing_keeps_forward_and_recomputed_ops_apart(reentrant: bool) -> None:
    torch.manual_seed(0)
    trace, report = scan(
        Checkpointed(reentrant), torch.randn(3, 4), lambda m, x: mean_square(m(x)), loss_scale=64.0
    )
    assert report.verdict == "clean"
    sites = candidate(trace).sites
    forward = [r.site.module for r in sites if r.site.phase == "forward" and r.site.op == "aten::addmm"]
    assert forward == ["enter", "block.0", "block.2", "leave"]
    recomputed = [r.site.module for r in sites if r.recomputed and r.site.op == "aten::addmm"]
    assert recomputed == (["block.0", "block.2"] if reentrant else recomputed)
    assert set(recomputed) <= {"block.0", "block.2"}
    assert {p.name for p in candidate(trace).parameters if p.absmax} == {
        f"{name}.{kind}" for name in ("enter", "block.0", "block.2", "leave") for kind in ("weight", "bias")
    }
    backward = {r.site.module for r in sites if r.site.phase == "backward" and not r.recomputed}
    assert {"enter", "block.0", "block.2", "leave"} <= backward


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "non-reentrant"])
def test_an_overflow_under_checkpointing_is_one_forward_fault(reentrant: bool) -> None:
    torch.manual_seed(0)
    _, report = scan(
        Checkpointed(reentrant, gain=1e6), torch.randn(3, 4), lambda m, x: mean_square(m(x)), loss_scale=64.0
    )
    assert report.verdict == "forward-overflow"
    assert report.first_fault is not None
    assert report.first_fault.phase == "forward"
    # The weight itself, 0.35e6, leaves the range where autocast casts it.
    assert (report.first_fault.module, report.first_fault.op) == ("block.2", "aten::_to_copy")


# ---------------------------------------------------------------- torch's own layers


class Sequence(nn.Module):
    def __init__(self, layer: nn.Module, call: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer = layer
        self.head = nn.Linear(8, 2)
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.call(self.layer, x))


LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module, Tensor], Tensor]]] = {
    "LSTM": (lambda: nn.LSTM(8, 8, num_layers=2, batch_first=True), lambda m, x: m(x)[0]),
    "bidirectional-LSTM": (lambda: nn.LSTM(8, 4, batch_first=True, bidirectional=True), lambda m, x: m(x)[0]),
    "GRU": (lambda: nn.GRU(8, 8, batch_first=True), lambda m, x: m(x)[0]),
    "RNN": (lambda: nn.RNN(8, 8, batch_first=True), lambda m, x: m(x)[0]),
    "LSTMCell": (lambda: nn.LSTMCell(8, 8), lambda m, x: m(x[:, 0])[0]),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(8, 2, batch_first=True), lambda m, x: m(x, x, x)[0]),
    "TransformerEncoderLayer": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        lambda m, x: m(x),
    ),
    "TransformerDecoderLayer": (
        lambda: nn.TransformerDecoderLayer(8, 2, 16, batch_first=True),
        lambda m, x: m(x, x),
    ),
    "BatchNorm": (lambda: nn.BatchNorm1d(5), lambda m, x: m(x)),
    "Conv": (lambda: nn.Conv1d(5, 5, 3, padding=1), lambda m, x: F.max_pool1d(F.gelu(m(x)), 1)),
    "ConvTranspose": (lambda: nn.ConvTranspose1d(5, 5, 3, padding=1), lambda m, x: m(x)),
    "GroupNorm": (lambda: nn.GroupNorm(1, 5), lambda m, x: m(x)),
    "RMSNorm": (lambda: nn.RMSNorm(8), lambda m, x: m(x)),
    "Bilinear": (lambda: nn.Bilinear(8, 8, 8), lambda m, x: m(x, x)),
    "ParametrizedLinear": (
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)),
        lambda m, x: m(x),
    ),
}


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", LAYERS)
def test_torch_layers_are_scanned_forward_and_backward(name: str, training: bool) -> None:
    build, call = LAYERS[name]
    torch.manual_seed(0)
    model = Sequence(build(), call).train(training)
    trace, report = scan(model, torch.randn(4, 5, 8), lambda m, x: mean_square(m(x)), loss_scale=64.0)
    assert (report.verdict, warnings_of(report)) == ("clean", [])
    layer = [r for r in candidate(trace).sites if r.site.module.split(".")[0] == "layer"]
    assert {r.site.phase for r in layer} == {"forward", "backward"}
    assert all(p.absmax is not None for p in candidate(trace).parameters)
    assert len(candidate(trace).parameters) == sum(1 for _ in model.parameters())


def test_a_packed_sequence_goes_through() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(4, 4, batch_first=True)

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
            return nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0]

    torch.manual_seed(0)
    _, report = scan(
        Packed(),
        {"x": torch.randn(3, 5, 4), "lengths": torch.tensor([5, 3, 2])},
        lambda m, b: mean_square(m(b["x"], b["lengths"])),
        loss_scale=64.0,
    )
    assert (report.verdict, warnings_of(report)) == ("clean", [])


def test_every_pass_begins_with_the_buffers_as_they_were() -> None:
    class Counts(nn.Module):
        calls: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 1)
            self.norm = nn.BatchNorm1d(4)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1  # a second pass that began where the first ended would give twice the output
            return self.linear(self.norm(x)) * self.calls

    torch.manual_seed(0)
    model = Counts()
    trace, report = scan(model, torch.randn(8, 4), lambda m, x: mean_square(m(x)), loss_scale=64.0)
    assert (report.verdict, warnings_of(report)) == ("clean", [])
    losses = [record.loss for record in trace.passes]
    assert losses == pytest.approx([losses[0]] * len(losses), rel=1e-2)
    assert (float(model.calls), int(model.norm.num_batches_tracked or 0)) == (0.0, 0)


def test_sparse_embedding_gradients() -> None:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(1000, 4, sparse=True)
            self.head = nn.Linear(4, 2)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.embed(tokens).mean(1))

    torch.manual_seed(0)
    trace, report = scan(
        Bag(), torch.tensor([[1, 2], [3, 4]]), lambda m, t: mean_square(m(t)), loss_scale=64.0
    )
    assert (report.verdict, warnings_of(report)) == ("clean", [])
    embed = next(p for p in candidate(trace).parameters if p.name == "embed.weight")
    assert (embed.numel, embed.reference_nonzero, embed.lost) == (4000, 16, 0)


# ---------------------------------------------------------------- scripts, compilation, what nobody runs


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.linear(x)) * x


@pytest.mark.parametrize("how", ["script", "trace"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_script_module_is_measured(how: str) -> None:
    torch.manual_seed(0)
    gate: Any = torch.jit.script(Gate()) if how == "script" else torch.jit.trace(Gate(), torch.randn(2, 4))
    model = nn.Sequential(nn.Linear(4, 4), gate, nn.Linear(4, 1))
    trace, report = scan(model, torch.randn(3, 4), lambda m, x: mean_square(m(x)), loss_scale=64.0)
    assert report.verdict == "clean"
    script = next(m for m in trace.modules if m.path == "1")
    assert script.calls == 1
    assert script.opaque or any(r.site.module.startswith("1") for r in candidate(trace).sites)
    assert {p.name for p in candidate(trace).parameters} == {n for n, _ in model.named_parameters()}


COMPILED = """
import torch
from torch import nn


def build_model():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    model[0] = torch.compile(model[0])
    return torch.compile(model)


def build_batch():
    return torch.randn(3, 4)


def compute_loss(model, x):
    return model(x).float().square().mean()
"""


def test_a_compiled_model_runs_eagerly_and_the_trace_says_so(tmp_path: Path) -> None:
    (tmp_path / "compiled.py").write_text(COMPILED)
    document = {
        "model": {"target": "compiled.py:build_model"},
        "data": {"target": "compiled.py:build_batch"},
        "loss": {"target": "compiled.py:compute_loss"},
        "precision": {"loss_scale": 64.0, "device": "cpu"},
    }
    trace, report = run_config(Config.model_validate(document).located(tmp_path, "compiled"))
    assert (report.verdict, warnings_of(report)) == ("clean", [])
    assert {m.path: m.compiled for m in trace.modules} == {"": True, "0": True, "1": False, "2": False}
    assert {r.site.module for r in candidate(trace).sites if r.site.op == "aten::addmm"} == {"0", "2"}
    assert any("compile" in phrase for phrase in report.not_seen)


def test_a_module_that_never_runs_is_a_doubt_and_no_fault() -> None:
    class HasSpare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used = nn.Linear(4, 1)
            self.spare = nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    torch.manual_seed(0)
    trace, report = scan(HasSpare(), torch.randn(2, 4), lambda m, x: mean_square(m(x)), loss_scale=64.0)
    assert report.verdict == "clean"
    assert [f.module for f in report.findings if f.code == "AMP902"] == ["spare"]
    assert {m.path: m.calls for m in trace.modules}["spare"] == 0


def test_forward_only() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    trace, report = scan(model, torch.randn(2, 4), lambda m, x: m(x), forward_only=True)
    assert report.verdict == "clean"
    assert trace.environment.forward_only
    assert candidate(trace).loss is None
    assert {r.site.phase for r in candidate(trace).sites} == {"forward"}


def test_a_forward_only_overflow_reaches_the_output() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)).eval()
    with torch.no_grad():
        model[1].weight.fill_(6e4)
    _, report = scan(model, torch.ones(2, 4) * 50, lambda m, x: m(x), forward_only=True)
    assert report.verdict == "forward-overflow"
    assert report.first_fault is not None
    assert (report.first_fault.module, report.first_fault.op) == ("1", "aten::addmm")


def test_no_parameter_needs_a_gradient() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).requires_grad_(False)
    trace, report = scan(model, torch.randn(2, 4), lambda m, x: mean_square(m(x)))
    assert report.verdict in ("clean", "not-measured")
    assert trace.environment.trainable_parameters == 0
    assert candidate(trace).parameters == ()
    assert {r.site.phase for r in candidate(trace).sites} == {"forward"}


def test_a_loss_that_does_not_depend_on_the_parameters() -> None:
    torch.manual_seed(0)
    trace, report = scan(
        nn.Linear(4, 2), torch.randn(2, 4), lambda m, x: mean_square(m(x).detach() + x.sum())
    )
    assert report.verdict in ("clean", "not-measured")
    assert all(p.absmax is None for p in candidate(trace).parameters)


def test_some_parameters_frozen() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    trace, report = scan(model, torch.randn(2, 4), lambda m, x: mean_square(m(x)), loss_scale=64.0)
    assert report.verdict == "clean"
    assert [p.name for p in candidate(trace).parameters] == ["2.weight", "2.bias"]


def test_dropout_draws_the_same_mask_in_both_passes() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.5), nn.Linear(64, 1))
    trace, report = scan(model, torch.randn(4, 16), lambda m, x: mean_square(m(x)), loss_scale=64.0)
    assert (report.verdict, warnings_of(report)) == ("clean", [])
    losses = {p.role: p.loss for p in trace.passes}
    assert losses["candidate"] == pytest.approx(losses["reference"], rel=1e-2)


# ---------------------------------------------------------------- where hooks on module outputs fail


class Overflows(nn.Module):
    """Returns a dict and a list with an inf in it; nothing else returns that tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> dict[str, Any]:
        big = self.linear(x) * 1e6
        return {"parts": [x, big], "mask": x > 0, "nothing": x[:0]}


def test_inf_in_a_list_in_a_dict() -> None:
    torch.manual_seed(0)
    _, report = scan(Overflows(), torch.randn(2, 4), lambda m, x: mean_square(m(x)["parts"][1]))
    assert report.verdict == "forward-overflow"
    assert report.first_fault is not None
    assert (report.first_fault.module, report.first_fault.op) == ("", "aten::mul")


class ReturnsMask(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x > 0, x[:0], x.argmax(-1)


def test_a_module_that_returns_a_mask_an_empty_tensor_and_indices() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.mask = ReturnsMask()

        def forward(self, x: Tensor) -> Tensor:
            h = self.linear(x)
            keep, empty, _ = self.mask(h)
            return torch.cat([h * keep, empty])

    torch.manual_seed(0)
    _, report = scan(Masked(), torch.randn(2, 4), lambda m, x: mean_square(m(x)), loss_scale=64.0)
    assert (report.verdict, warnings_of(report)) == ("clean", [])


def test_a_causal_mask_of_minus_infinity_is_no_fault() -> None:
    class Causal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            h = self.linear(x)
            scores = h @ h.transpose(1, 2)
            mask = torch.full((5, 5), -math.inf).triu(1)
            return (scores + mask).softmax(-1) @ h

    torch.manual_seed(0)
    _, report = scan(Causal(), torch.randn(2, 5, 4), lambda m, x: mean_square(m(x)), loss_scale=64.0)
    assert (report.verdict, warnings_of(report)) == ("clean", [])


def test_an_inf_that_only_backward_makes() -> None:
    class Magnitude(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return torch.sqrt(self.linear(x).float().square())

    torch.manual_seed(0)
    batch = torch.randn(3, 4)
    batch[1] = 0.0  # the root of 0: its derivative is 1 / 0
    _, report = scan(Magnitude(), batch, lambda m, x: m(x).sum(), loss_scale=64.0)
    assert report.verdict == "backward-undefined"
    assert report.first_fault is not None
    assert (report.first_fault.phase, report.first_fault.module) == ("backward", "")
    assert (report.first_fault.op, report.first_fault.forward_op) == ("aten::div", "aten::sqrt")
    assert report.first_fault.samples == (1,)
    assert report.first_fault.fp32_also_fails
    assert report.first_fault.source is not None
    assert report.first_fault.source.text == "return torch.sqrt(self.linear(x).float().square())"


def test_an_inf_that_backward_masks_again_is_no_fault() -> None:
    class Rooted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return torch.sqrt(F.relu(self.linear(x)).float())

    torch.manual_seed(0)
    _, report = scan(Rooted(), torch.randn(2, 4), lambda m, x: m(x).sum(), loss_scale=64.0)
    assert (report.verdict, warnings_of(report)) == ("clean", [])

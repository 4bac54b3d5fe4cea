"""torch's own layers, each watched."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from case_runner import candidate, scan, warnings_of
from model_parts import mean_square


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

"""Recurrent layers under CUDA's autocast on a CPU, and the cache of weights that their cells need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ampdoctor.probe.cuda.on_cpu import (
    cuda_autocast_policy,
    decomposed_rnns,
)

HALF, BRAIN, SINGLE = torch.float16, torch.bfloat16, torch.float32


@pytest.fixture
def on_cuda() -> Iterator[None]:
    """Under float16 autocast, with CUDA's policy."""
    with cuda_autocast_policy(), torch.autocast("cpu", dtype=HALF):
        yield


class Seen(TorchDispatchMode):
    """Counts the ops that run, below autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: Counter[str] = Counter()
        self.casts: list[tuple[tuple[int, ...], torch.dtype]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.ops[func._schema.name] += 1
        if func._schema.name == "aten::_to_copy":
            self.casts.append((tuple(result.shape), result.dtype))
        return result


# --- recurrent layers -------------------------------------------------------------------------------------

RECURRENT: dict[str, Callable[[], nn.Module]] = {
    "LSTM": lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True),
    "LSTM with projections": lambda: nn.LSTM(3, 4, proj_size=2),
    "GRU": lambda: nn.GRU(3, 4, dropout=0.5, num_layers=2),
    "RNN tanh": lambda: nn.RNN(3, 4),
    "RNN relu": lambda: nn.RNN(3, 4, nonlinearity="relu", bias=False),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers_run_in_the_lower_dtype_and_train(name: str, on_cuda: None) -> None:
    layer = RECURRENT[name]()
    output, hidden = layer(torch.randn(2, 5, 3))
    assert output.dtype is HALF
    assert (hidden[1] if isinstance(hidden, tuple) else hidden).dtype is HALF
    output.sum().backward()
    assert all(p.grad is not None and p.grad.dtype is SINGLE for p in layer.parameters())


def test_recurrent_layers_take_packed_sequences(on_cuda: None) -> None:
    layer = nn.LSTM(3, 4)
    packed = nn.utils.rnn.pack_sequence([torch.randn(5, 3), torch.randn(2, 3)])
    output, (h, c) = layer(packed)
    assert output.data.dtype is h.dtype is c.dtype is HALF
    output.data.sum().backward()
    assert layer.weight_hh_l0.grad is not None


def test_a_recurrent_layer_is_close_to_float32(on_cuda: None) -> None:
    torch.manual_seed(0)
    layer, x = nn.LSTM(3, 4), torch.randn(6, 2, 3)
    with torch.autocast("cpu", enabled=False):
        exact, _ = layer(x)
    output, _ = layer(x)
    assert (output.float() - exact).abs().max().item() < 2e-3


def test_decomposed_rnns_show_every_gate_and_keep_the_result() -> None:
    torch.manual_seed(0)
    layer, x = nn.GRU(3, 4, num_layers=2), torch.randn(5, 2, 3)
    expected, _ = layer(x)
    with decomposed_rnns(), decomposed_rnns(), Seen() as seen:
        output, _ = layer(x)
        output.sum().backward()
    assert torch.allclose(output, expected, atol=1e-6)
    assert "aten::mkldnn_rnn_layer" not in seen.ops
    assert seen.ops["aten::sigmoid_"] + seen.ops["aten::sigmoid"] == 2 * 5 * 2  # layers x steps x gates
    with Seen() as seen, torch.no_grad():
        nn.LSTM(3, 4)(x)
    assert seen.ops["aten::mkldnn_rnn_layer"] == 1


def test_onednn_stays_on_after_a_recurrent_layer_that_raises(on_cuda: None) -> None:
    with pytest.raises(RuntimeError):
        nn.LSTM(3, 4)(torch.randn(2, 5, 7))
    assert torch.backends.mkldnn.enabled


# --- the cache of weights ---------------------------------------------------------------------------------


def test_a_weight_is_cast_once_per_autocast_context() -> None:
    cell, x = nn.LSTMCell(3, 2), torch.randn(1, 3)
    with cuda_autocast_policy():
        for _ in range(2):
            with torch.autocast("cpu", dtype=HALF), Seen() as seen:
                state = None
                for _ in range(3):
                    state = cell(x, state)
            assert seen.casts.count(((8, 3), HALF)) == 1


def test_an_updated_weight_is_cast_again_in_the_next_context() -> None:
    weight = nn.Parameter(torch.ones(2, 3))
    with cuda_autocast_policy():
        with torch.autocast("cpu", dtype=HALF):
            assert torch.mv(weight, torch.ones(3)).tolist() == [3.0, 3.0]
        with torch.no_grad():
            weight.mul_(2)
        with torch.autocast("cpu", dtype=HALF):
            assert torch.mv(weight, torch.ones(3)).tolist() == [6.0, 6.0]


def test_without_autocasts_cache_every_use_is_cast() -> None:
    cell, x = nn.LSTMCell(3, 2), torch.randn(1, 3)
    with cuda_autocast_policy(), torch.autocast("cpu", dtype=HALF, cache_enabled=False), Seen() as seen:
        cell(x, cell(x))
    assert seen.casts.count(((8, 3), HALF)) == 2

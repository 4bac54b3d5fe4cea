"""What models return and take: containers and kinds of tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.utils import ModelOutput

from case_runner import candidate, scan, warnings_of
from model_parts import Loss, Packed, mean_square

# ---------------------------------------------------------------- containers


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

"""What is in force where a scan is called: torch's defaults and modes change no answer, or are refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

import ampdoctor


def model() -> nn.Module:
    """Weights in FP32, whatever the default is."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1)).float()


def loss(m: nn.Module, x: Tensor) -> Tensor:
    return m(x).square().mean()


X = torch.linspace(-1, 1, 8).reshape(2, 4)


@pytest.fixture(params=[torch.float16, torch.bfloat16, torch.float64])
def default_dtype(request: pytest.FixtureRequest) -> Iterator[None]:
    torch.set_default_dtype(request.param)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("default_dtype")
def test_the_default_dtype_is_none_of_our_tensors() -> None:
    """A loss scale of 65,536 made in FP16 is inf."""
    report = ampdoctor.scan(model(), X, loss, loss_scale=65536.0)
    assert (report.verdict, report.loss_scale.configured) == ("clean", 65536.0)


@pytest.mark.parametrize("mode", [torch.device("meta"), FakeTensorMode(allow_non_fake_inputs=True)])
def test_a_mode_without_values_is_refused_and_the_weights_stay(mode: AbstractContextManager[object]) -> None:
    built = model()
    before = [parameter.clone() for parameter in built.parameters()]
    with mode, pytest.raises(ampdoctor.ProbeError, match="hold no values"):
        ampdoctor.scan(built, X, loss)
    assert all(torch.equal(a, b) for a, b in zip(built.parameters(), before, strict=True))


def test_a_model_that_can_have_no_gradient_is_refused() -> None:
    with torch.inference_mode():
        built = model()
    with pytest.raises(ampdoctor.ProbeError, match=r"built under torch\.inference_mode: 0\.weight"):
        ampdoctor.scan(built, X, loss)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_a_scan_takes_its_gradients_whatever_is_in_force(mode: type[AbstractContextManager[None]]) -> None:
    with mode():
        report = ampdoctor.scan(model().train() if mode is not torch.inference_mode else BUILT, X, loss)
    assert report.verdict == "clean"
    assert report.loss_scale is not None


BUILT = model()


class Passes(TorchFunctionMode):
    """A caller's own mode that changes nothing."""

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        return func(*args, **(kwargs or {}))


def test_a_callers_mode_is_not_blamed_for_the_lines_of_the_model() -> None:
    def overflows(m: nn.Module, x: Tensor) -> Tensor:
        return (m(x) * 1e30).square().mean()

    with Passes():
        fault = ampdoctor.scan(model(), X, overflows).first_fault
    assert fault is not None and fault.source is not None
    assert "1e30" in fault.source.text
    assert all("return func(*args" not in step.source.text for step in fault.path if step.source is not None)

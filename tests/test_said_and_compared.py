"""Nothing is said that was not compared: sentences and advice where it is easy to say too much."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ampdoctor
from ampdoctor.api.report import Report
from ampdoctor.diagnose.report import Finding


class Scaled(nn.Module):
    """One weight of one: the batch arrives as it is, rounded."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x


def report_of(step: Callable[..., Any] | str, batch: Any, **options: Any) -> Report:
    return ampdoctor.scan(Scaled(), batch, step, **({"mode": "half", "loss_scale": 1.0} | options))


def of_code(report: Report, code: str) -> Finding:
    (finding,) = [f for f in report.findings if f.code == code]
    return finding


def clamped(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) * 100).clamp(-10, 10).float()


def test_an_overflow_that_is_absorbed_is_not_called_nothing() -> None:
    """1,000 * 100 is inf in FP16; the clamp makes 10 of both. The other sample's 0.05 * 100 is 5."""
    batch = torch.tensor([[1000.0], [0.05]])
    report = report_of(lambda m, x: clamped(m, x).sum(), batch)
    assert report.verdict == "clean"
    assert report.sentence.startswith(
        "CLEAN. What overflows or is undefined is absorbed at loss scale 1, and"
    )
    assert " It is absorbed by clamp (top-level code)" in of_code(report, "AMP101").message


def test_nor_where_there_is_no_loss() -> None:
    class Clamped(Scaled):
        def forward(self, x: Tensor) -> Tensor:
            return (super().forward(x) * 100).clamp(-10, 10).float()

    report = ampdoctor.scan(Clamped(), torch.tensor([[1000.0], [0.05]]), "none", mode="half")
    assert report.sentence == (
        "CLEAN. What overflows or is undefined in the FP16 forward is absorbed before the end."
    )


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (2.0**9, "top-level code leaves the FP16 range at 65,536, and that of 0 even at scale 1."),
        (2.0**15, "top-level code leaves the FP16 range even at scale 1."),
    ],
)
def test_of_several_batches_the_one_that_overflows_at_scale_1_is_spoken_of(value: float, words: str) -> None:
    """The gradient that arrives is twice the value: 2^10 fits at scale 1, times the value in ``0`` it is
    2^19 and does not; 2^16 does not fit as it arrives. That of the first batch, 6 and 18, fits at scale 1."""
    batches = [(torch.tensor([3.0]),), (torch.tensor([value]),)]

    def step(model: nn.Module, batch: tuple[Tensor]) -> Tensor:
        return model(batch[0]).float().square().sum()

    report = ampdoctor.scan(nn.Sequential(Scaled()), batches, step, mode="half", loss_scale=65536.0)
    fault = report.first_fault
    assert fault is not None and (fault.batch, fault.module) == (1, "")
    assert report.sentence == f"NO LOSS SCALE WORKS. The backward of {words}"


def test_bf16_is_not_advised_where_fp32_fails_too() -> None:
    """1e13 does not fit FP16; its cube, 1e39, does not fit FP32 either."""
    report = report_of(lambda m, x: m(x).float().pow(3).sum(), torch.tensor([[1e13], [1.0]]))
    remedy = of_code(report, "AMP101").remedy
    assert remedy.endswith("That alone does not mend it: the FP32 run is not finite either.")
    assert "BF16" not in remedy


@pytest.mark.parametrize(
    ("op", "value", "words"),
    [
        (torch.expm1, 95.0, "expm1 is inf from 88.7 on in FP32, from 11.1 on in FP16, and it is 95 here"),
        (torch.cosh, 95.0, "cosh is inf from 89.4 on in FP32, from 11.8 on in FP16"),
        (torch.acos, 1.5, "Clamp the argument to [-1 + eps, 1 - eps]"),
        (torch.atanh, 1.5, "Clamp the argument to [-1 + eps, 1 - eps]"),
    ],
)
def test_a_clamp_is_advised_with_its_bounds(op: Callable[[Tensor], Tensor], value: float, words: str) -> None:
    report = report_of(lambda m, x: op(m(x).float()).sum(), torch.tensor([value]))
    assert report.verdict == "forward-undefined"
    assert words in of_code(report, "AMP102").remedy


def test_a_difference_of_two_tensors_is_no_difference_from_one() -> None:
    """Near 100 FP16 moves in steps of 0.0625: 100.01 - 100 is 0, and its log -inf."""
    batch = torch.tensor([[100.01, 100.0], [103.0, 100.0]])
    report = report_of(lambda m, x: (m(x)[:, 0] - m(x)[:, 1]).log().float().sum(), batch)
    remedy = of_code(report, "AMP104").remedy
    assert "difference of nearly equal numbers" in remedy
    assert "next to 1" not in remedy and "logsigmoid" not in remedy


def test_beside_no_loss_scale_works_a_higher_one_is_not_advised() -> None:
    """``loud`` ends the scales at 2^4, where ``faint``, 2^-32, is zero."""
    model = nn.ParameterDict({"loud": torch.ones(1, 1), "faint": torch.ones(1, 1)})

    def step(model: nn.Module, x: Tensor) -> Tensor:
        loud, faint = model.get_parameter("loud"), model.get_parameter("faint")
        return (x @ loud).float().sum() * 2.0**11 + (x @ faint).float().sum() * 2.0**-32

    report = ampdoctor.scan(model, torch.ones(1, 1), step)
    assert report.verdict == "no-workable-scale"
    assert of_code(report, "AMP203").remedy == "Follow AMP204: a higher loss scale overflows."
    assert report.sentence.endswith("still loses gradient that matters.")


def test_where_fp32_raises_no_gradient_is_said_to_be_kept() -> None:
    """FP32 saves the buffer itself for backward, which the write then spoils; autocast saves a half copy. The
    bias receives 2 * 4 / 8 = 1 times the scale: 2^16 is past FP16's end, which GradScaler backs off from."""

    class Queue(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(4, 4)
            nn.init.ones_(self.lin.weight), nn.init.zeros_(self.lin.bias)
            self.register_buffer("queue", torch.ones(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            h = self.lin(x)
            loss: Tensor = (h @ self.queue).float().mean()
            with torch.no_grad():
                self.queue[:1] = h[:1]
            return loss

    report = ampdoctor.scan(Queue(), torch.ones(2, 4))
    assert report.sentence == (
        "CLEAN, as far as it goes: nothing overflows at loss scale 32,768, where GradScaler settles after "
        "1 skipped step; FP32 raises, so what gradients lose was not compared."
    )
    assert ".half()" not in of_code(report, "AMP906").remedy

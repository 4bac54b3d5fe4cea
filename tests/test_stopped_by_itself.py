"""A model that looks for bad values and raises: the fault is where the value was born, not the check."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from case_runner import codes, scan


class Checked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.head = nn.Linear(4, 4, bias=False), nn.Linear(4, 2)
        with torch.no_grad():
            self.wide.weight.fill_(1e4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.wide(x)
        if not torch.isfinite(y).all():
            raise ValueError("activations are not finite")
        out: Tensor = self.head(y * 1e-5)
        return out


class Sampled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = Checked().wide

    def forward(self, x: Tensor) -> Tensor:
        mean = self.wide(x).float() - self.wide(x).float()
        normal = torch.distributions.Normal(mean, 1.0, validate_args=True)
        return normal.log_prob(torch.zeros(()))


def test_a_check_of_the_models_own() -> None:
    _, report = scan(Checked(), torch.full((3, 4), 8.0), lambda m, x: m(x).float().square().mean())
    assert report.verdict == "forward-overflow"
    assert report.first_fault is not None
    assert (report.first_fault.module, report.first_fault.op) == ("wide", "aten::mm")
    assert report.first_fault.exact_value == 4 * 8 * 1e4
    assert [f.severity for f in report.findings if f.code == "AMP101"] == ["error"]
    assert [f.severity for f in report.findings if f.code == "AMP107"] == ["info"]


def test_a_distribution_that_validates_its_arguments() -> None:
    _, report = scan(Sampled(), torch.full((3, 4), 8.0), lambda m, x: m(x).mean())
    assert report.verdict == "forward-overflow"
    assert report.first_fault is not None
    assert report.first_fault.module == "wide"
    assert "AMP107" in codes(report)


def test_an_exception_before_anything_is_bad_stays_one() -> None:
    class Refuses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.linear(x)
            if y.dtype != torch.float32:
                raise TypeError("float32 wanted")
            return y

    _, report = scan(Refuses(), torch.ones(3, 4), lambda m, x: m(x).mean())
    assert report.verdict == "raises"
    assert [f.severity for f in report.findings if f.code == "AMP107"] == ["error"]

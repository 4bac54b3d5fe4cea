"""Gradients that are zero in exact arithmetic hold nothing that low precision could lose."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ampdoctor.scales.gradient_harm import without_noise
from case_runner import candidate, scan, warnings_of


class Cancelling(nn.Module):
    """``noise`` is added to both sides of a difference: its gradient is zero, but for rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.noise, self.head = nn.Linear(16, 16), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        shift = self.noise(x).float().sum(-1, keepdim=True)
        y = self.head(x).float()
        out: Tensor = torch.log_softmax(torch.cat([y + shift, shift - y], -1), -1)
        return out


def test_a_module_whose_gradient_is_all_noise_is_left_in_peace() -> None:
    torch.manual_seed(0)
    trace, report = scan(
        Cancelling(), torch.randn(32, 16), lambda m, x: -m(x)[:, 0].mean(), loss_scale=1024.0
    )
    noise = {p.name: p for p in candidate(trace).parameters}["noise.weight"]
    assert noise.relative_error is not None and noise.relative_error > 0.05
    assert noise.reference_error is not None and noise.reference_error > 0.1
    assert {p.name for p in without_noise(candidate(trace).parameters)} == {"head.weight", "head.bias"}
    assert (report.verdict, warnings_of(report)) == ("clean", [])


def test_a_gradient_that_is_really_lost_is_not_taken_for_noise() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
    trace, report = scan(
        model, torch.randn(32, 16), lambda m, x: m(x).float().square().mean() * 1e-7, loss_scale=1.0
    )
    errors = [p.reference_error for p in candidate(trace).parameters]
    assert all(e is not None and e < 1e-3 for e in errors)
    assert report.verdict == "gradient-underflow"

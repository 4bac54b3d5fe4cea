"""AMP901 names what CUDA does in half that a CPU run does not follow."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ampdoctor.diagnose.report import Finding
from case_runner import scan


class Calls(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(4, 4), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.linear(x)).float().mean()  # type: ignore[no-any-return]


def said(function: Any) -> Finding:
    _, report = scan(Calls(function), torch.ones(2, 4), lambda m, x: m(x), loss_scale=1.0)
    return next(f for f in report.findings if f.code == "AMP901")


def test_the_kernel_of_attention_is_not_ours_to_know() -> None:
    found = said(lambda h: F.scaled_dot_product_attention(*3 * [h.view(2, 1, 2, 2)]))
    assert found.evidence["not_emulated"] == [
        "scaled_dot_product_attention runs in one of four kernels, and which is not known here"
    ]
    assert found.message.endswith(f" Not emulated: {found.evidence['not_emulated'][0]}.")


def test_a_gradient_that_is_added_up_in_half_by_an_index() -> None:
    found = said(lambda h: h[torch.tensor([0, 0, 1])])
    assert [op.split()[0] for op in found.evidence["not_emulated"]] == ["index_put"]


def test_an_assignment_by_an_index_rounds_nothing() -> None:
    def assigned(h: Tensor) -> Tensor:
        h = h.clone()
        h[torch.tensor([0, 1])] = torch.ones(2, 4, dtype=h.dtype)
        return h

    assert said(assigned).evidence["not_emulated"] == []


def test_the_backward_of_cumsum_is_in_half_under_autocast_too() -> None:
    found = said(lambda h: h.cumsum(-1))
    assert [op.split()[0] for op in found.evidence["not_emulated"]] == ["cumsum"]
    assert said(lambda h: h.float().cumsum(-1)).evidence["not_emulated"] == []

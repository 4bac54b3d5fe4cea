"""What a script does with an ``autograd.Function`` outside its modules."""

from __future__ import annotations

from pathlib import Path

import pytest

from script_runner import run

SCRIPT = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value * 1.0
    @staticmethod
    def backward(ctx, gradient):
        return -gradient

def reentrant(module, data):
    return checkpoint(module, data.clone().requires_grad_(), use_reentrant=True)

torch.manual_seed(0)
net, head, x = nn.Linear(6, 3), nn.Linear(3, 1), torch.randn(5, 6)
opt = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=0.1)
for _ in range(2):
    opt.zero_grad()
    loss = LOSS
    loss.backward()
    assert net.weight.grad.any()
    opt.step()
"""


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        ("head(Reversed.apply(net(x))).sum()", "a computation that was not recorded"),
        ("Reversed.apply(head(net(x)).sum())", "where no call was recorded"),
        ("head(reentrant(net, x)).sum()", "a computation that was not recorded"),
    ],
)
def test_what_it_made_is_not_run_again_without_its_backward(loss: str, why: str, tmp_path: Path) -> None:
    """Its forward runs without gradients: replayed from there, ``net`` has none, and is called clean."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("LOSS", loss))
    report, ended, _ = run(script)
    assert (ended.said, report.examined) == ("", ())
    (not_seen,) = report.not_seen
    assert why in not_seen


def test_a_result_without_a_history_is_still_run_again(tmp_path: Path) -> None:
    """A target made under ``no_grad`` has no gradient in the script either."""
    script = tmp_path / "train.py"
    loss = "(head(net(x)) - torch.no_grad()(lambda: head(net(x)) * 0.5)()).square().sum()"
    script.write_text(SCRIPT.replace("LOSS", loss))
    report, ended, _ = run(script)
    assert ended.said == ""
    assert [e.report.verdict for e in report.examined] == ["clean"], report.not_seen

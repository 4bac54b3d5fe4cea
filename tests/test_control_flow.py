"""``torch.cond``, ``while_loop``, ``map``, ``scan``: functions are seen, what they hold learns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan as torch_scan
from torch._higher_order_ops.while_loop import while_loop
from torch.torch_version import TorchVersion

from case_runner import candidate, scan

X = torch.randn(6, 16, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """A layer inside a function that is handed on."""

    def __init__(self, flow: Callable[[Net, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(16, 16)
        self.flow = flow

    def forward(self, x: Tensor) -> Tensor:
        return self.flow(self, x)


def cond(net: Net, x: Tensor) -> Tensor:
    made: Tensor = torch.cond(x.sum() > -1e9, lambda x: net.inner(x).tanh(), lambda x: x + 0, (x,))
    return made


def loop(net: Net, x: Tensor) -> Tensor:
    count = torch.tensor(0)
    return while_loop(lambda i, z: i < 2, lambda i, z: (i + 1, net.inner(z)), (count, x))[1]  # type: ignore[no-any-return]


def mapped(net: Net, x: Tensor) -> Tensor:
    return torch_map(net.inner, x)  # type: ignore[no-any-return]


def scanned(net: Net, x: Tensor) -> Tensor:
    def step(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        carry = net.inner(carry) + row
        return carry, carry * 2

    return torch_scan(step, x[0] * 0, x)[1]  # type: ignore[no-any-return]


def plain(name: str) -> Callable[[Net, Tensor], Tensor]:
    """The same in Python."""

    def python_scan(net: Net, x: Tensor) -> Tensor:
        carry, rows = x[0] * 0, []
        for row in x:
            carry = net.inner(carry) + row
            rows.append(carry * 2)
        return torch.stack(rows)

    return {
        "cond": lambda net, x: net.inner(x).tanh(),
        "loop": lambda net, x: net.inner(net.inner(x)),
        "mapped": lambda net, x: torch.stack([net.inner(row) for row in x]),
        "scanned": python_scan,
    }[name]


def loss(model: nn.Module, batch: Any) -> Tensor:
    made: Tensor = model(batch).square().mean()
    return made


@pytest.mark.parametrize("flow", [cond, loop, mapped, scanned], ids=lambda f: f.__name__)
def test_the_functions_of_control_flow_are_seen_with_their_gradients(
    flow: Callable[[Net, Tensor], Tensor],
) -> None:
    if flow is scanned and TorchVersion(torch.__version__) < "2.9":
        pytest.skip("its scan takes no carry that begins to need a gradient")
    trace, report = scan(Net(flow), X, loss, loss_scale=1024.0)
    expected, _ = scan(Net(plain(flow.__name__)), X, loss, loss_scale=1024.0)
    assert report.verdict == "clean"
    assert candidate(trace).loss == candidate(expected).loss
    assert candidate(trace).parameters == candidate(expected).parameters != ()
    seen = {(s.site.phase, s.site.module) for s in candidate(trace).sites}
    assert {("forward", "inner"), ("backward", "inner")} <= seen


def test_a_fault_in_a_branch_is_named_there() -> None:
    net = Net(lambda net, x: torch.cond(x.sum() > -1e9, lambda x: net.inner(x) * 1e4, lambda x: x + 0, (x,)))
    with torch.no_grad():
        net.inner.weight.fill_(1.0)
    _, report = scan(net, X.abs() * 10, lambda m, b: m(b).float().mean(), loss_scale=1.0)
    assert (report.verdict, report.first_fault and report.first_fault.op) == ("forward-overflow", "aten::mul")
    assert report.first_fault is not None and report.first_fault.source is not None
    assert "* 1e4" in report.first_fault.source.text

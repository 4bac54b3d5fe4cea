"""What is asked of a process in which CUDA is host memory, beyond what a scan says: each gives plain data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ampdoctor.load.workload import Workload
from ampdoctor.probe.plan import Plan
from ampdoctor.probe.scan import probe

SCENARIOS: dict[str, Callable[[], Any]] = {}


def scenario(made: Callable[[], Any]) -> Callable[[], Any]:
    SCENARIOS[made.__name__] = made
    return made


def scanned(model: nn.Module, device: str) -> Any:
    x = torch.ones(4, 8, requires_grad=True)
    return probe(Workload("test", model, (x,), lambda m, x: m(x)), Plan(device=device, loss_scale=1.0))


# -- random generators

DRAWN: list[list[float]] = []


class Draws(nn.Module):
    """Draws on one device, wherever the rest runs; normal numbers that are no FP16 come before a dropout."""

    def __init__(self, device: str | None = None) -> None:
        super().__init__()
        self.device = device
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x)
        noise = torch.zeros(8, dtype=torch.float16, device=self.device or x.device).normal_(0.0, 1e6)
        kept = nn.functional.dropout(torch.ones_like(noise, dtype=torch.float32))
        DRAWN.append(kept.tolist())
        return (h * kept.to(h.device)).float().mean() + noise.to(h.device).float().nan_to_num(
            0, 0, 0
        ).sum() * 0


def first_draws(seed: int, device: str = "cuda:0") -> list[list[float]]:
    """What the device draws next, and what it must, if it was seeded so and has drawn nothing since."""
    expected = torch.rand(3, generator=torch.Generator().manual_seed(seed))
    return [torch.rand(3, device=device).tolist(), expected.tolist()]


@scenario
def cuda_starts_with_the_scan() -> Any:
    torch.manual_seed(5)
    assert not torch.cuda.is_initialized()
    scanned(Draws(), "cuda")
    return first_draws(5)


@scenario
def cuda_starts_in_a_pass_on_the_host() -> Any:
    torch.manual_seed(5)
    scanned(Draws("cuda:1"), "cpu")
    assert torch.cuda.is_initialized()
    return first_draws(5, "cuda:1")


@scenario
def cuda_starts_after_the_scan() -> Any:
    torch.manual_seed(5)
    scanned(Draws(), "cpu")
    assert not torch.cuda.is_initialized()
    return first_draws(5)


@scenario
def generators_after_a_scan() -> Any:
    generators = (torch.default_generator, *torch.cuda.default_generators)
    model = Draws()
    torch.manual_seed(5)
    torch.rand(1, device="cuda:0"), torch.rand(2, device="cuda:1"), torch.rand(3)
    before = [g.get_state() for g in generators]
    scanned(model, "cuda")
    return [torch.equal(b, g.get_state()) for b, g in zip(before, generators, strict=True)]


@scenario
def draws_of_every_pass() -> Any:
    """[births, what was drawn in each pass]: a second look runs the op of a birth once more."""
    DRAWN.clear()
    trace = scanned(Draws(), "cuda")
    return [[b.site.op for b in trace.births], list(DRAWN)]

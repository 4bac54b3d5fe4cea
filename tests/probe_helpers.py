"""Probes a small model made in a test, and finds what was recorded of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ampdoctor.facts.trace import Birth, Pass, SiteRecord, Trace
from ampdoctor.load.workload import Workload
from ampdoctor.probe.plan import Plan
from ampdoctor.probe.scan import probe

Loss = Callable[[nn.Module, Any], Any]


def summed(model: nn.Module, batch: Any) -> Tensor:
    """A loss whose gradient is 1 everywhere."""
    return model(batch).float().sum()


class Calls(nn.Module):
    """A model whose forward is the function it is given; modules by keyword."""

    def __init__(self, forward: Callable[[Calls, Any], Any], **modules: nn.Module) -> None:
        super().__init__()
        self._forward = forward
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x: Any) -> Any:
        return self._forward(self, x)


def workload(model: nn.Module, *batches: Any, loss: Loss = summed, forward_only: bool = False) -> Workload:
    return Workload("test", model, batches or (torch.ones(2, 4),), loss, forward_only)


def traced(
    model: nn.Module, *batches: Any, loss: Loss = summed, forward_only: bool = False, **plan: Any
) -> Trace:
    """The trace of a probe at loss scale 1, without a search for others, unless ``plan`` says so."""
    chosen = Plan(**{"loss_scale": 1.0, "search_scale": False, **plan})
    return probe(workload(model, *batches, loss=loss, forward_only=forward_only), chosen)


def pass_of(trace: Trace, role: str = "candidate", batch: int = 0) -> Pass:
    (found,) = (p for p in trace.passes if p.role == role and p.batch == batch)
    return found


def records(seen: Pass, op: str = "", phase: str = "") -> list[SiteRecord]:
    """The records of an op (without ``aten::``) in a phase, in order; '' for any."""
    return [
        r for r in seen.sites if op in ("", r.site.op.removeprefix("aten::")) and phase in ("", r.site.phase)
    ]


def birth_ops(trace: Trace) -> list[tuple[str, str]]:
    """(value, op) of each birth made by an op."""
    return [(b.value, b.site.op.removeprefix("aten::")) for b in trace.births if b.site is not None]


def the_birth(trace: Trace) -> Birth:
    """The only birth that an op made."""
    (found,) = (b for b in trace.births if b.origin == "op")
    return found


def text(record: SiteRecord | Birth | Any) -> str | None:
    """The text of its source line."""
    return None if record.source is None else record.source.text

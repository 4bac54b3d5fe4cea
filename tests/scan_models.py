"""What the tests of `probe` scan."""

from __future__ import annotations

import torch
from torch import nn

from ampdoctor.facts.trace import Trace

X = torch.ones(2, 4)


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, 4)


def runs(trace: Trace) -> list[tuple[str, int]]:
    return [(p.role, p.batch) for p in trace.passes]

"""Traces of a forward pass in half precision, and what their births are called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from ampdoctor.facts.trace import Trace
from probe_helpers import Calls, traced


def halved(forward: Callable[..., Any], batch: Any, **modules: nn.Module) -> Trace:
    """The trace of this forward with everything in float16; the reference has it in float32."""
    return traced(Calls(forward, **modules), batch, mode="half")


def origins(trace: Trace) -> list[str]:
    return [b.origin for b in trace.births]

"""What is probed: a model, batches, and how a batch becomes a loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ampdoctor.load.spread import own_policy


@dataclass(frozen=True)
class Workload:
    """A loaded model with its data and loss, on the CPU, in the dtypes the user built it in."""

    title: str
    """What to call it in a report: the config's file name or the model target."""
    model: torch.nn.Module
    """Without wrappers: torch.compile, DDP, FSDP; its weights whole."""
    batches: tuple[Any, ...]
    """At least one. Any nesting of dicts, lists, tuples, dataclasses and tensors."""
    step: Callable[[torch.nn.Module, Any], Any]
    """(model, batch) -> the scalar loss tensor; with ``forward_only`` the model's outputs instead.

    Raises LoadError where the model returned something that cannot be a loss.
    """
    forward_only: bool = False
    build_optimizer: Callable[[torch.nn.Module], torch.optim.Optimizer] | None = None
    compiled: tuple[str, ...] = ()
    """Paths of modules that were compiled with torch.compile ('' is the root)."""

    @property
    def own_policy(self) -> str:
        """The precision that the model's own wrapper asks for and that is not followed; '' for none."""
        return own_policy(self.model)

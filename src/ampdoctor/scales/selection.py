"""Which gradients to look at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ampdoctor.scales.powers_of_two import GradientTensor

EVERYTHING, ACTIVATIONS, PARAMETERS = "all", "activations", "parameters"


@dataclass(frozen=True)
class Selection:
    """Which of the gradients to look at."""

    kind: str = EVERYTHING
    """``all`` | ``activations`` (gradients on their way) | ``parameters`` (those that arrive)"""
    layers: tuple[str, ...] = ()
    """Globs over module paths, parents included, or over parameter names; () for all."""

    def takes(self, module: str, parameter: str) -> bool:
        """True for a tensor that is asked for; ``parameter``: the one whose gradient it is, or ''."""
        if self.kind != EVERYTHING and (self.kind == PARAMETERS) != bool(parameter):
            return False
        return not self.layers or any(
            fnmatchcase(path, glob)
            for name in {module, parameter or module}
            for path in _with_parents(name)
            for glob in self.layers
        )

    def holds(self, tensor: GradientTensor) -> bool:
        """True for a gradient that is asked for."""
        return self.takes(tensor.site.module, tensor.parameter)

    def name_of(self, tensor: GradientTensor) -> str:
        """The layer that the tensor is shown under."""
        return tensor.parameter if self.kind == PARAMETERS else tensor.site.module


def _with_parents(name: str) -> Iterator[str]:
    """``a.b.c``, ``a.b``, ``a``; the root module's '' alone."""
    yield name
    while "." in name:
        name = name.rpartition(".")[0]
        yield name

"""A site: the one place where a tensor is made, named so that passes of different precision match."""

from __future__ import annotations

from dataclasses import dataclass

from ampdoctor.facts.words import Phase


@dataclass(frozen=True)
class Source:
    """A line of the user's program."""

    file: str
    """Path of the file, as Python knows it."""
    line: int
    """1-based."""
    text: str
    """The line itself, stripped; '' where the file cannot be read."""
    function: str = ""
    """The function that holds the line."""


@dataclass(frozen=True)
class Site:
    """Phase + module + op + nth call + output index. Equal in an FP32 and an FP16 pass of the same work."""

    phase: Phase
    module: str
    """Dotted path of the innermost module whose forward made the op; '' for the root or code outside any."""
    op: str
    """The overload packet's name: ``aten::mm``."""
    nth: int
    """0 for the first call of this op in this module and phase."""
    output: int = 0
    """Which of the op's outputs."""

    @property
    def key(self) -> str:
        """One string for the five parts; ``forward|blocks.1.ff.wo|aten::mm|0|0``."""
        return f"{self.phase}|{self.module}|{self.op}|{self.nth}|{self.output}"

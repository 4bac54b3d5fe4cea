"""What a gate demands: severities and codes that fail it, limits, and what it allows against a baseline."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from ampdoctor.diagnose.report import Finding
from ampdoctor.facts.words import SEVERITIES

HEADROOM, UNDERFLOW, LOST, DRIFT = "headroom_bits", "gradient_underflow", "lost_gradient", "drift"
LIMIT_NAMES = (HEADROOM, UNDERFLOW, LOST, DRIFT)
"""The keys of the config's ``limits`` that a gate holds."""


@dataclass(frozen=True)
class Limit:
    """One limit that the config states."""

    name: str
    """One of LIMIT_NAMES."""
    modules: str
    """A glob over module paths; '' for what holds everywhere."""
    value: float

    @property
    def key(self) -> str:
        """As the config has it: ``limits."decoder.*".headroom_bits``."""
        return f'limits."{self.modules}".{self.name}' if self.modules else f"limits.{self.name}"

    def fits(self, module: str) -> bool:
        """True for a module it speaks of."""
        return not self.modules or fnmatchcase(module, self.modules)


@dataclass(frozen=True)
class GateRules:
    """As the config's ``gate`` and ``limits`` give them."""

    fail_on: tuple[str, ...] = ("error",)
    """Severities, that one or a worse, and rule codes or beginnings of codes."""
    limits: tuple[Limit, ...] = ()
    """Those that hold everywhere first; of several that fit a module the last holds."""
    scale_in_window: bool = False
    """The configured loss scale must be one that works."""
    allow_headroom_loss: float = 0.5
    """Bits."""
    allow_underflow_gain: float = 0.05
    """A share, 0 to 1."""

    def fails_on(self, finding: Finding) -> bool:
        """True for a finding that fails a gate without a baseline."""
        if finding.accepted is not None:
            return False
        weighs = SEVERITIES[SEVERITIES.index(finding.severity) :]
        return any(entry in weighs or _is_code_of(entry, finding.code) for entry in self.fail_on)


def _is_code_of(entry: str, code: str) -> bool:
    return entry.startswith("AMP") and code.startswith(entry)

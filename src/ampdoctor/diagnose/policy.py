"""What the user asked to be told: limits, and which rules to apply."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from ampdoctor.diagnose.waivers import Waiver


@dataclass(frozen=True)
class Policy:
    """Limits and rule selection, as the config's ``limits`` and ``rules`` give them."""

    headroom_bits: float = 1.0
    """A forward tensor with less headroom than this is reported (AMP103)."""
    module_headroom: tuple[tuple[str, float], ...] = ()
    """(glob over module paths, headroom_bits for them); the last one that fits holds."""
    gradient_underflow: float = 0.01
    """The share of all gradient elements that may be lost to rounding (AMP203)."""
    scale_margin_bits: float = 1.0
    """How far below overflow a recommended loss scale stays."""
    select: tuple[str, ...] = ("AMP",)
    """Rule codes or prefixes of them that are applied."""
    ignore: tuple[str, ...] = ()
    """Rule codes or prefixes of them that are not, whatever ``select`` says."""
    waivers: tuple[Waiver, ...] = ()
    """Findings that somebody accepts."""
    today: str = ""
    """The day that decides which waivers have expired, ``2027-01-31``; '' where none does."""

    def headroom_of(self, module: str) -> float:
        """The headroom a module must keep."""
        own = [bits for glob, bits in self.module_headroom if fnmatchcase(module, glob)]
        return own[-1] if own else self.headroom_bits

    def applies(self, code: str) -> bool:
        """True for a rule that is selected and not ignored."""
        return code.startswith(self.select) and not code.startswith(self.ignore)

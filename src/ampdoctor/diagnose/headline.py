"""A verdict in words: what stands out of it, and the rest of the sentence."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Headline:
    """``OVERFLOW in forward. blocks.1.ff.wo leaves the FP16 range; FP32 is fine.``"""

    head: str
    """The verdict, with its full stop."""
    rest: str = ""
    """Where it is and what it means; '' where the head says all."""

    def __str__(self) -> str:
        return f"{self.head} {self.rest}".rstrip()

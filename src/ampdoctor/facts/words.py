"""The words that facts and reports are told in: each a type, so that a misspelled one is found."""

from __future__ import annotations

from typing import Literal

Mode = Literal["autocast", "half", "none"]
"""How the candidate runs: under autocast; with weights and batch cast; as the user built it."""

Phase = Literal["forward", "backward", "optimizer"]
"""What a step is doing when an op runs."""

Role = Literal["reference", "candidate", "ladder"]
"""What a pass is for; ``ladder`` is the candidate at another loss scale."""

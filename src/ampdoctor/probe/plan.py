"""What a probe is asked to do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """How to run the candidate. Defaults are the contract's."""

    mode: str = "autocast"
    """``autocast`` | ``half`` (weights and batch cast to ``dtype``) | ``none`` (as built)"""
    dtype: str = "float16"
    """``float16`` | ``bfloat16``"""
    device: str = "auto"
    """``auto`` | ``cpu`` | ``cuda`` | ``cuda:1``"""
    emulate: str = "cuda"
    """What a CPU imitates: ``cuda`` | ``none``"""
    loss_scale: float = 65536.0
    seed: int = 0
    search_scale: bool = True
    """Run the candidate at other loss scales too, to find and prove the window that works."""
    scale_margin_bits: float = 1.0
    """How far below the first overflow the scale to prove lies."""
    underflow_limit: float = 0.01
    """The share of gradient elements that may become zero at the window's low end."""

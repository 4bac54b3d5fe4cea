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

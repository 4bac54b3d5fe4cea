"""What a probe is asked to do."""

from __future__ import annotations

from dataclasses import dataclass

from ampdoctor.facts.scaler_policies import GRAD_SCALER_START
from ampdoctor.facts.words import Mode, Scaler


@dataclass(frozen=True)
class WideModule:
    """A module that the candidate runs in FP32, with all that is inside it.

    Its low-precision inputs are widened and autocast is off in it; its low-precision weights and buffers are
    FP32, also where another module shares them.
    """

    path: str
    """As in ``named_modules``; '' is the whole model."""
    casts_back: bool = False
    """Its FP32 outputs are cast to the candidate's dtype; else they stay FP32."""


@dataclass(frozen=True)
class ScaledModule:
    """A module whose backward runs at a scale of its own, with all that is inside it."""

    path: str
    factor: float
    """Times the loss scale, from its outputs to its inputs; divided out again there and at its parameters."""


@dataclass(frozen=True)
class LineChange:
    """A line of the user's code that runs otherwise: with another number, else all of it in FP32."""

    file: str
    line: int
    constant: float | None = None
    """The number there that is replaced; None for FP32: its inputs are widened, and autocast is off in it."""
    becomes: float | None = None


@dataclass(frozen=True)
class ModuleFormats:
    """The formats that a module's values are rounded to, in a candidate that is FP32 otherwise."""

    path: str
    """Of a module, whose finest modules are meant; ``*`` stands for any one name: ``blocks.*.mlp``."""
    forward: str
    """Of its inputs, weights and outputs: ``float8_e4m3fn`` | ``float8_e5m2`` | ``float16`` | ``bfloat16`` |
    ``float32``. The 8-bit ones have a power of two per tensor."""
    gradient: str
    """Of the gradients that come in at its outputs and leave at its inputs."""


@dataclass(frozen=True)
class Plan:
    """How to run the candidate. Defaults are the contract's, but for the loss scale, which is fixed here."""

    mode: Mode = "autocast"
    """``half``: weights and batch cast to ``dtype``; ``none``: as built"""
    dtype: str = "float16"
    """``float16`` | ``bfloat16``"""
    device: str = "auto"
    """``auto`` | ``cpu`` | ``cuda`` | ``cuda:1``"""
    emulate: str = "cuda"
    """What a CPU imitates: ``cuda`` | ``none``"""
    loss_scale: float = GRAD_SCALER_START
    """Of a dynamic scaler, the one it starts at; 1 without a scaler."""
    scaler: Scaler = "fixed"
    """``dynamic``: the scale is halved until the gradients are finite; the candidate is what runs there."""
    seed: int = 0
    search_scale: bool = True
    """Run the candidate at other loss scales too, to find and prove the window that works."""
    scale_margin_bits: float = 1.0
    """How far below the first overflow the scale to prove lies."""
    underflow_limit: float = 0.01
    """The share of gradient elements that may become zero at the window's low end."""
    wide_modules: tuple[WideModule, ...] = ()
    """What the candidate runs in FP32."""
    wide_loss: bool = False
    """The candidate's loss runs in FP32: only calls of the model see low precision, and what they return is
    widened."""
    scaled_modules: tuple[ScaledModule, ...] = ()
    """What of the candidate's backward runs at another scale than the loss scale."""
    line_changes: tuple[LineChange, ...] = ()
    """Lines that the candidate runs otherwise than they are written."""
    formats: tuple[ModuleFormats, ...] = ()
    """With any, the candidate is FP32 without autocast, and these modules' values are rounded."""
    optimizer_steps: int = 25
    """Steps of the optimizer to take, where one is configured."""

"""What depends on the device: its name, its scaler, and the process-wide switches, kept and put back."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from ampdoctor.errors import ConfigError
from ampdoctor.facts.training import ScalerSettings

_cuda, _cudnn, _mkldnn = torch.backends.cuda, torch.backends.cudnn, torch.backends.mkldnn


class _Switch(NamedTuple):
    read: Callable[[], Any]
    write: Callable[[Any], object]

    def value(self) -> Any:
        """What it is set to; None where it cannot be read now."""
        try:
            return self.read()
        except RuntimeError:
            # The older names of the TF32 switches refuse to be read once the newer ones were used.
            return None

    def set(self, value: Any) -> None:
        """Written only where it differs: a write also cuts the tie to the switch it inherits from."""
        if value is not None and self.value() != value:
            self.write(value)


def _attribute(owner: Any, name: str) -> _Switch:
    return _Switch(lambda: getattr(owner, name), lambda value: setattr(owner, name, value))


_PRECISION = _Switch(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision)
_OLD_TF32 = (_attribute(_cuda.matmul, "allow_tf32"), _attribute(_cudnn, "allow_tf32"))
_NEW_TF32 = tuple(
    # torch 2.9 and later; those that others inherit from come first
    _attribute(owner, "fp32_precision")
    for owner in (
        torch.backends, _cudnn, _mkldnn, _cuda.matmul,
        *(getattr(family, op, None) for family in (_cudnn, _mkldnn) for op in ("conv", "rnn", "matmul")),
    )
    if hasattr(owner, "fp32_precision")
)  # fmt: skip
_TF32 = (_PRECISION, *_OLD_TF32, *_NEW_TF32)
"""In an order that restores all: an older switch sets newer ones with it."""

_FLAGS = (
    *_TF32,
    _Switch(torch.get_default_dtype, torch.set_default_dtype),
    _Switch(torch.is_grad_enabled, torch.set_grad_enabled),
    _Switch(torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    _Switch(torch.get_num_threads, torch.set_num_threads),
    _Switch(torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    _attribute(_cudnn, "enabled"),
    _attribute(_cudnn, "benchmark"),
    _attribute(_cudnn, "deterministic"),
)


@contextmanager
def flags_kept() -> Iterator[None]:
    """Every switch as it was, on exit."""
    with _kept(_FLAGS):
        yield


@contextmanager
def tf32_off() -> Iterator[None]:
    """FP32 products in FP32, not with the 10 bits of TF32 (or, on a CPU that has it, the 7 of BF16)."""
    with _kept(_TF32):
        _PRECISION.set("highest")
        for switch in _OLD_TF32:
            switch.set(False)
        for switch in _NEW_TF32:
            if switch.value() in ("tf32", "bf16"):
                switch.write("ieee")
        yield


@contextmanager
def _kept(switches: tuple[_Switch, ...]) -> Iterator[None]:
    before = [switch.value() for switch in switches]
    try:
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.set(value)


@contextmanager
def outside_autocast(devices: set[str]) -> Iterator[None]:
    """As if the caller had opened no autocast.

    Theirs is no part of a pass, and takes hold of our own arithmetic between passes. Opening one that is
    disabled would not do: only the outermost autocast empties the cache of cast weights when it ends, and a
    pass, or a checkpoint's recomputation, would be served those of the one before.
    """
    before = {device: torch.is_autocast_enabled(device) for device in devices}
    depth = torch.autocast_increment_nesting() - 1
    for _ in range(depth + 1):
        torch.autocast_decrement_nesting()
    for device in devices:
        torch.set_autocast_enabled(device, False)
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.clear_autocast_cache()
        for _ in range(depth):
            torch.autocast_increment_nesting()
        for device, enabled in before.items():
            torch.set_autocast_enabled(device, enabled)


def choose_device(name: str) -> torch.device:
    """The device a config names; ``auto`` is the GPU where there is one. Raises ConfigError without it."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if count == 0:
            raise ConfigError(
                f"precision.device: {name} was asked for, and this machine has no CUDA device",
                "leave precision.device out (auto) to emulate CUDA on the CPU",
            )
        if device.index is not None and device.index >= count:
            raise ConfigError(
                f"precision.device: {name} does not exist; this machine has {count} CUDA device(s)",
                f"use cuda:0 to cuda:{count - 1}",
            )
        torch.cuda.init()  # so that its generators are there when the first pass saves the state of all
    return device


def device_name(device: torch.device) -> str:
    """The GPU's name; the processor's kind on a CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()


def grad_scaler(device: torch.device, settings: ScalerSettings) -> torch.amp.GradScaler:
    """torch's scaler for the device, which has its scale already."""
    scaler = torch.amp.GradScaler(device.type, **vars(settings))
    scaler.scale(
        torch.zeros((), dtype=torch.float32, device=device)
    )  # it makes its scale when it is first used
    return scaler

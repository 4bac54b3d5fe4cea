"""Makes what user code says about CUDA's autocast, ``torch.autocast("cuda", ...)``, hold for the CPU's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.amp.autocast_mode

from ampdoctor.facts.words import AUTOCAST_DEVICES


@contextmanager
def requested_autocast() -> Iterator[None]:
    """While open, a ``torch.autocast("cuda")`` made on a machine without CUDA keeps what the user asked for.

    PyTorch makes it ``enabled=False`` there, for good. Open this where user code is imported and its model
    built as well: ``@torch.autocast("cuda")`` above a method makes its object then.
    """
    autocast = torch.amp.autocast_mode.autocast
    original = autocast.__init__

    def init(
        self: torch.autocast,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        if device_type != "cuda":
            original(self, device_type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)
            return
        if dtype is None:
            dtype = torch.get_autocast_dtype("cuda")
        # Disabled, it makes no objection; any CUDA device may have bfloat16.
        original(self, "cuda", dtype=dtype, enabled=False, cache_enabled=cache_enabled)
        self._enabled = enabled

    with replaced(autocast, "__init__", init):
        yield


@contextmanager
def cuda_calls_mean_cpu(on_cache_cleared: Callable[[], None]) -> Iterator[None]:
    """While open, autocast is on for both devices or for neither, with one dtype, whichever the code names.

    So ``torch.autocast``, ``torch.cuda.amp.autocast``, ``torch.is_autocast_enabled()``, ``custom_fwd`` and
    the like tell and do on the CPU what they would on CUDA. The default dtype is CUDA's, float16.
    """
    before = {d: (torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in AUTOCAST_DEVICES}
    set_enabled, set_dtype = torch.set_autocast_enabled, torch.set_autocast_dtype
    clear_cache, cast = torch.clear_autocast_cache, torch.amp.autocast_mode._cast

    def both_enabled(device_or_flag: Any, enabled: bool | None = None) -> None:
        device, flag = ("cuda", device_or_flag) if enabled is None else (device_or_flag, enabled)
        for d in AUTOCAST_DEVICES if device in AUTOCAST_DEVICES else (device,):
            set_enabled(d, flag)

    def both_dtypes(device: str, dtype: torch.dtype) -> None:
        for d in AUTOCAST_DEVICES if device in AUTOCAST_DEVICES else (device,):
            set_dtype(d, dtype)

    def clear_both_caches() -> None:
        clear_cache()
        on_cache_cleared()

    def cast_on_cpu(value: Any, device_type: str, dtype: torch.dtype) -> Any:
        return cast(value, "cpu" if device_type == "cuda" else device_type, dtype)

    with ExitStack() as undo:
        undo.callback(_restore, before)
        both_enabled("cpu", before["cpu"][0])
        both_dtypes("cpu", before["cpu"][1] if before["cpu"][0] else torch.float16)
        undo.enter_context(requested_autocast())
        for name, replacement in (
            ("set_autocast_enabled", both_enabled),
            ("set_autocast_dtype", both_dtypes),
            ("set_autocast_cpu_enabled", lambda enabled: both_enabled("cpu", enabled)),
            ("set_autocast_cpu_dtype", lambda dtype: both_dtypes("cpu", dtype)),
            ("set_autocast_gpu_dtype", lambda dtype: both_dtypes("cuda", dtype)),
            ("clear_autocast_cache", clear_both_caches),
        ):
            undo.enter_context(replaced(torch, name, replacement))
        undo.enter_context(replaced(torch.amp.autocast_mode, "_cast", cast_on_cpu))
        yield


@contextmanager
def autocast_kept_off() -> Iterator[None]:
    """While open, autocast stays off whatever the user's code says, so that a float32 reference is one."""
    before = {d: (torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in AUTOCAST_DEVICES}
    set_enabled = torch.set_autocast_enabled

    def keep_off(device_or_flag: Any, enabled: bool | None = None) -> None:
        set_enabled("cuda" if enabled is None else device_or_flag, False)

    with ExitStack() as undo:
        undo.callback(_restore, before)
        for device in AUTOCAST_DEVICES:
            set_enabled(device, False)
        undo.enter_context(requested_autocast())
        undo.enter_context(replaced(torch, "set_autocast_enabled", keep_off))
        undo.enter_context(
            replaced(torch, "set_autocast_cpu_enabled", lambda enabled: keep_off("cpu", enabled))
        )
        yield


def _restore(before: dict[str, tuple[bool, torch.dtype]]) -> None:
    for device, (enabled, dtype) in before.items():
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """While open, ``owner.name`` is ``value``; afterwards what it was, or what a base class says."""
    own = name in vars(owner)
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)

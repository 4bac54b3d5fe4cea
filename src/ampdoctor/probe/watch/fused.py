"""Counts of tensors on a GPU, by one kernel each: where Triton is there and its compiler makes the kernel.

(The kernel was compiled, and compared with torch's ops in Triton's interpreter; not run on a GPU yet.)
"""

from __future__ import annotations

import functools
import importlib.util
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ampdoctor.errors import is_out_of_memory
from ampdoctor.probe.watch.exponents import (
    BRAIN,
    HALF,
    INF,
    LOWEST,
    NAN,
    POWERS,
    SINGLE,
    ZERO,
    Pattern,
    in_storage_order,
)
from ampdoctor.probe.watch.nonfinite import readable

_ROWS = 256
"""Tensors to a table: 2 MiB of counters for BF16."""
_PROGRAMS = 1024
"""Programs of a launch at most: enough for eight on each of a large GPU's 132 multiprocessors."""
SIZE = 1024
"""Elements that a program reads at a time."""
_NONE = -(2**63)
"""Below the order of any number."""


@dataclass(frozen=True)
class _Kind:
    """A dtype as the kernel sees it."""

    bits: torch.dtype
    """Integers of its width."""
    pattern: Pattern
    bins: int
    """The power of two that its exponents, powers, zero, inf and NaN and one for padding fit in."""

    @property
    def exponents(self) -> int:
        """Binary exponents of its numbers, subnormals included."""
        return (1 << self.pattern.exponent_bits) - 2 + self.pattern.mantissa_bits

    def all_bins(self) -> list[int]:
        """Of each of the kernel's counters, its bin."""
        bias = 2 ** (self.pattern.exponent_bits - 1) - 1
        lowest = 1 - bias - self.pattern.mantissa_bits - LOWEST
        exponents = range(lowest, lowest + self.exponents)
        powers = [POWERS + e for e in exponents] if self.pattern.complete else []
        return [*exponents, *powers, ZERO, INF, NAN]


_KINDS = {
    torch.float16: _Kind(torch.int16, HALF, 128),
    torch.bfloat16: _Kind(torch.int16, BRAIN, 1024),
    torch.float32: _Kind(torch.int32, SINGLE, 512),
    torch.float64: _Kind(torch.int64, SINGLE, 512),
}

_Key = tuple[torch.device, int, torch.dtype]
"""Device, stream and dtype: a table is filled on the stream it was made on."""


@dataclass
class _Tables:
    rows: list[int] = field(default_factory=list)
    counts: list[Tensor] = field(default_factory=list)
    ranges: list[Tensor] = field(default_factory=list)


def constants(dtype: torch.dtype, exponents: bool) -> dict[str, int]:
    """What the kernel for tensors of this dtype is compiled with."""
    pattern = _KINDS[dtype].pattern
    return {
        "WIDTH": 8 * dtype.itemsize,
        "MANTISSA": pattern.mantissa_bits,
        "FIELDS": 1 << pattern.exponent_bits,
        "POWERS": pattern.complete,
        "COUNT": exponents,
        "BINS": _KINDS[dtype].bins,
        "SIZE": SIZE,
    }


class Fused(NamedTuple):
    """What the kernels left, by row."""

    ranges: dict[int, tuple[float, ...]]
    """(min, max), NaN if any element is."""
    bins: dict[int, list[tuple[int, int]]]
    """[(bin, elements)] for the bins that have any."""


class FusedCounter:
    """Range and counts by exponent of many tensors. ``add`` never waits for the device; ``read`` does."""

    def __init__(self) -> None:
        self._tables: dict[_Key, _Tables] = {}

    def add(self, row: int, x: Tensor, exponents: bool) -> bool:
        """Counts a dense real tensor with at least one element under a number of the caller's.

        False where the kernel cannot be had: nothing is counted then. Without ``exponents`` only the range.
        """
        kernel = _kernel()
        if kernel is None or _refusals:
            return False
        x = readable(x)
        kind = _KINDS[x.dtype]
        tables = self._tables.setdefault((x.device, _stream(x), x.dtype), _Tables())
        at = len(tables.rows) % _ROWS
        if at == 0:
            tables.counts.append(torch.zeros(_ROWS, kind.bins, dtype=torch.int64, device=x.device))
            tables.ranges.append(torch.full((_ROWS, 4), _NONE, dtype=torch.int64, device=x.device))
        flat = in_storage_order(x).view(kind.bits)
        programs = min(-(-flat.numel() // SIZE), _PROGRAMS)
        try:
            with torch.cuda.device_of(x):
                kernel.tally[(programs,)](
                    flat,
                    flat.numel(),
                    tables.counts[-1],
                    tables.ranges[-1],
                    at,
                    **constants(x.dtype, exponents),
                )
        except Exception as error:
            if is_out_of_memory(error):
                raise
            _refuse(error)
            return False
        tables.rows.append(row)
        return True

    def read(self) -> Fused:
        """What was counted. Two transfers per device, stream and dtype."""
        ranges: dict[int, tuple[float, ...]] = {}
        found: dict[int, list[tuple[int, int]]] = {row: [] for t in self._tables.values() for row in t.rows}
        for (_, _, dtype), tables in self._tables.items():
            if not tables.rows:
                continue
            kind = _KINDS[dtype]
            largest, smallest, nans, _ = torch.cat(tables.ranges).cpu()[: len(tables.rows)].unbind(1)
            low, high = _number(-smallest, kind, dtype), _number(largest, kind, dtype)
            for row, nan, extremes in zip(
                tables.rows, nans.tolist(), zip(low.tolist(), high.tolist(), strict=True), strict=True
            ):
                ranges[row] = (float("nan"), float("nan")) if nan > 0 else extremes
            counts = torch.cat(tables.counts).cpu()[: len(tables.rows)]
            where = torch.nonzero(counts)
            bins = kind.all_bins()
            for (i, at), n in zip(where.tolist(), counts[where[:, 0], where[:, 1]].tolist(), strict=True):
                found[tables.rows[i]].append((bins[at], n))
        return Fused(ranges, found)


def _number(order: Tensor, kind: _Kind, dtype: torch.dtype) -> Tensor:
    """The numbers of this order: their magnitude's bits, with their sign."""
    magnitude = order.abs().to(kind.bits).view(dtype).double()
    return torch.where(order < 0, -magnitude, magnitude)


def _stream(x: Tensor) -> int:
    return torch.cuda.current_stream(x.device).cuda_stream if x.is_cuda else 0


# ---------------------------------------------------------------- the kernel, or why there is none

_refusals: list[str] = []
"""Why the kernel is not used in this process any more; it is tried until it fails once."""


def refusal() -> str:
    """Why torch's own ops count on a GPU instead, in one line; '' where the kernel does, or is not there."""
    return _refusals[0] if _refusals else ""


def _refuse(error: Exception) -> None:
    first_line = str(error).strip().partition("\n")[0]
    _refusals.append(f"{type(error).__name__}: {first_line}".rstrip(": "))


@functools.cache
def _kernel() -> Any:
    """The kernel's module; None without Triton (it comes with CUDA builds of torch)."""
    if importlib.util.find_spec("triton") is None:
        return None
    try:
        from ampdoctor.probe.watch import device_kernel
    except Exception as error:  # a Triton that does not fit this torch
        _refuse(error)
        return None
    return device_kernel

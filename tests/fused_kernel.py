"""In a process of its own, where Triton interprets: prints where the kernel and torch's ops differ."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterator

assert os.environ.get("TRITON_INTERPRET") == "1", "Triton asks for it when it is imported"

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from ampdoctor.probe.watch import exponents, fused, tally  # noqa: E402
from ampdoctor.probe.watch.exponents import ExponentCounter  # noqa: E402

FLOATS = [
    getattr(torch, name)
    for name in (
        "float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
        "float8_e5m2fnuz",
    )
    if hasattr(torch, name)
]  # fmt: skip


def special(dtype: torch.dtype) -> Tensor:
    """Every kind of number of the dtype: all of an 8-bit one's, else the ends of each exponent."""
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    if dtype.itemsize == 1:
        return torch.arange(256, dtype=torch.uint8).view(dtype)
    bits = 8 * dtype.itemsize
    mantissa = {torch.float16: 10, torch.bfloat16: 7, torch.float32: 23, torch.float64: 52}[dtype]
    step = 37 if dtype == torch.float64 else 1  # of its 2048 exponents some, and all that float32 has
    fields = [*range(0, 1 << (bits - 1 - mantissa), step), *range(1023 - 160, 1023 + 140)][:2100]
    fields = [f for f in fields if f < 1 << (bits - 1 - mantissa)]
    ends = [0, 1, 2, 3, (1 << mantissa) - 1, 1 << (mantissa - 1), (1 << mantissa) - 2, 5 << (mantissa // 2)]
    if dtype == torch.float64:  # on both sides of where float32 rounds up to the next power of two
        ends += [((1 << 23) - 1) << 29 | low for low in ((1 << 28) - 1, 1 << 28)]
    patterns = sorted({(f << mantissa) | (e & ((1 << mantissa) - 1)) for f in fields for e in ends})
    values = torch.tensor(patterns, dtype=torch.int64)
    return torch.cat([values, values | -(1 << (bits - 1))]).to(integers).view(dtype)


def tensors(dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """(what it is, a tensor) for sizes, strides and offsets of every kind."""
    torch.manual_seed(0)
    every = special(dtype)
    yield "every number", every
    finite = every.double()[torch.isfinite(every.double())].to(dtype)
    yield "no NaN or infinity", finite
    yield "only infinities", torch.full((3,), math.inf).to(dtype)
    yield "only NaN", torch.full((3,), math.nan).to(dtype)
    yield "only zeros", torch.tensor([0.0, -0.0]).to(dtype)
    for size in (1, 2, 1023, 1024, 1025, 5003):
        yield f"{size} elements", (torch.randn(size) * 100).to(dtype)
    grid = (torch.randn(3, 10, 7, 5) * 3).to(dtype)
    yield "channels last", grid.contiguous(memory_format=torch.channels_last)
    yield "transposed", grid[0].transpose(0, 2)
    yield "offset", grid.view(-1)[3:]
    yield "offset by one row", grid[1]
    yield "gaps", grid.view(-1)[1::3]
    yield "a window", grid[:, 2:5, 1:]
    yield "expanded", grid[:1, :1].expand(2, 3, 7, 5)
    yield "no dimensions", torch.tensor(-1.5).to(dtype)
    yield "one element, expanded", torch.ones(1).to(dtype).expand(1)


def by_kernel(x: Tensor, count: bool) -> object:
    counter = fused.FusedCounter()
    assert counter.add(7, x, count), fused.refusal()
    seen = counter.read()
    return written(seen.ranges[7], sorted(seen.bins[7]))


def by_torch(x: Tensor, count: bool) -> object:
    low, high = tally._aminmax(x)
    bins = {7: []}
    if count:
        counter = ExponentCounter()
        counter.add(7, x, ties=False)
        bins = counter.read()
    return written((float(low), float(high)), sorted(bins[7]))


def written(extremes: tuple[float, ...], bins: list[tuple[int, int]]) -> object:
    """Bits of both ends, without a NaN's payload or a zero's sign, which depend on who came first."""
    ends = ["nan" if math.isnan(v) else struct.pack(">d", v + 0.0).hex() for v in extremes]
    return [ends, [list(b) for b in bins]]


def compared() -> dict[str, object]:
    differences, cases = [], 0
    for dtype in FLOATS:
        for name, x in tensors(dtype):
            for count in (True, False):
                cases += 1
                kernel, torchs = by_kernel(x, count), by_torch(x, count)
                if kernel != torchs:
                    differences.append([str(dtype), name, count, str(kernel)[:300], str(torchs)[:300]])
    return {"differences": differences, "cases": cases, "dtypes": [str(d) for d in FLOATS]}


if __name__ == "__main__":
    exponents.on_host = lambda x: False
    print("ANSWER" + json.dumps(compared()))

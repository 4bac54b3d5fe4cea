"""For whoever has a GPU: what scanning on it costs, and whether the emulation on a CPU says what it does.

    python benchmarks/on_cuda.py -o cuda.json

Takes a minute or two, needs ampdoctor and torch alone, and writes one JSON file (no paths, no names but the
GPU's): please send it to us. It was not run on a GPU yet. ``--device cpu --small`` goes through all of it
without one: the emulation is then compared with itself, and the times say nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ampdoctor.facts.trace import SiteRecord
from ampdoctor.load.workload import Workload
from ampdoctor.probe.passes.alone import alone
from ampdoctor.probe.passes.device import device_name
from ampdoctor.probe.passes.one_pass import run_pass
from ampdoctor.probe.passes.precision import candidate
from ampdoctor.probe.plan import Plan
from ampdoctor.probe.watch import fused, tally
from ampdoctor.probe.watch.observer import Observer
from ampdoctor.version import VERSION

SCHEMA = "ampdoctor.benchmark.cuda/1"
SCALE = 1024.0
CPU = torch.device("cpu")


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.before(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Language(nn.Module):
    """A transformer without dropout, whose draws no two devices share."""

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(layers)))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.blocks(self.embed(tokens))).flatten(0, 1), tokens.flatten())


class Vision(nn.Module):
    """Convolutions in ``channels_last``, batch norm, pooling."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs in (3, width, width):
            layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))

    def forward(self, images: Tensor) -> Tensor:
        x = images.contiguous(memory_format=torch.channels_last)
        return F.cross_entropy(self.body(x), torch.zeros(len(x), dtype=torch.long, device=x.device))


def models(small: bool) -> dict[str, tuple[nn.Module, Tensor]]:
    """Name -> a model with seeded weights and its batch, on the host."""
    torch.manual_seed(0)
    if small:
        language, tokens = Language(31, 32, 1), torch.randint(0, 31, (2, 8))
        return {"language": (language, tokens), "vision": (Vision(8), torch.randn(2, 3, 8, 8))}
    language, tokens = Language(32_000, 768, 6), torch.randint(0, 32_000, (8, 512))
    return {"language": (language, tokens), "vision": (Vision(128), torch.randn(32, 3, 96, 96))}


def waited(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """What a run takes, until the device is done."""
    waited(device)
    started = time.perf_counter()
    run()
    waited(device)
    return time.perf_counter() - started


def in_turns(runs: dict[str, Callable[[], object]], rounds: int, device: torch.device) -> dict[str, float]:
    """The median seconds of each. They take turns in one process; a first turn warms up and is left out."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 1):
        for name, run in runs.items():
            taken = seconds(run, device)
            if turn:
                times[name].append(taken)
    return {name: statistics.median(values) for name, values in times.items()}


# ---------------------------------------------------------------- a pass against a plain step


def recorded(model: nn.Module, batch: Any, device: torch.device) -> tuple[SiteRecord, ...]:
    """Every tensor of a candidate pass in FP16 autocast, at a loss scale of 1,024."""
    plan = Plan(device=device.type, loss_scale=SCALE)
    workload = Workload("benchmark", model, (batch,), lambda m, b: m(b))
    with alone():
        run = run_pass(workload, batch, candidate(plan, device, SCALE), 0, Observer)
    assert run.raised is None and run.backward_ran, run.raised
    return run.observer.records()


def step_ratio(model: nn.Module, batch: Tensor, device: torch.device, rounds: int) -> dict[str, Any]:
    """Seconds of a plain step in FP32, one in FP16 autocast, and a recorded pass; and the pass to either."""
    model, there = model.to(device), batch.to(device)

    def plain(autocasts: bool) -> None:
        model.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.float16, enabled=autocasts):
            loss = model(there)
        (loss.float() * SCALE).backward()

    times = in_turns(
        {
            "plain_float32": lambda: plain(False),
            "plain_autocast": lambda: plain(True),
            "recorded": lambda: recorded(model, there, device),
        },
        rounds,
        device,
    )
    model.zero_grad(set_to_none=True)
    ratios = {f"to_{name}": times["recorded"] / times[name] for name in ("plain_float32", "plain_autocast")}
    return {"seconds": times, **ratios, "tensors": len(recorded(model, there, device))}


# ---------------------------------------------------------------- counting against a device copy


def bandwidth(dtype: torch.dtype, elements: int, device: torch.device, rounds: int) -> dict[str, Any]:
    """GB/s of counting a tensor (read once) with the fused kernel and with torch's ops, and of a copy (read
    and written). ``fused`` is None where the kernel is not there."""
    x = torch.randn(elements, device=device).to(dtype)
    other = torch.empty_like(x)

    def count(by_kernel: bool) -> None:
        counter = tally.Tally()
        if by_kernel:
            counter.add(x, None)
            return
        on_gpu, tally._on_gpu = tally._on_gpu, lambda _: False
        try:
            counter.add(x, None)
        finally:
            tally._on_gpu = on_gpu

    runs: dict[str, Callable[[], object]] = {"copy": lambda: other.copy_(x), "torch": lambda: count(False)}
    if device.type == "cuda" and fused.FusedCounter().add(0, x, True):
        runs["fused"] = lambda: count(True)
    times = in_turns(runs, rounds, device)
    size = x.numel() * x.itemsize / 1e9
    rates = {name: (2 if name == "copy" else 1) * size / taken for name, taken in times.items()}
    return {"dtype": words(dtype), "bytes": x.numel() * x.itemsize, "gb_per_s": {"fused": None, **rates}}


# ---------------------------------------------------------------- emulation against the real thing


def single_ops() -> dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]]:
    """Name -> an op under autocast, and its inputs on the host: a gradient is taken through each."""
    torch.manual_seed(1)
    x, w, square = torch.randn(64, 96), torch.randn(48, 96) / 8, torch.randn(2, 8, 16, 16)
    half = x.half()
    return {
        "linear": (F.linear, (x, w, torch.randn(48))),
        "matmul": (torch.matmul, (x, w.t().contiguous())),
        "conv2d": (partial(F.conv2d, padding=1), (square, torch.randn(8, 8, 3, 3) / 8)),
        "softmax": (lambda a: F.softmax(a, -1), (half,)),
        "layer_norm": (lambda a: F.layer_norm(a, (96,)), (half,)),
        "exp": (torch.exp, (half,)),
        "sum": (lambda a: a.sum(-1), (half,)),
        "gelu": (F.gelu, (half,)),
        "silu": (F.silu, (half,)),
        "tanh": (torch.tanh, (half,)),
        "mul": (torch.mul, (half, half * 3)),
        "add": (torch.add, (half, half * 3)),
        "div": (torch.div, (half, half.abs() + 1)),
        "sqrt": (lambda a: torch.sqrt(a.abs() + 1), (half,)),
        "mean": (lambda a: a.mean(-1), (half,)),
        "cumsum": (lambda a: a.cumsum(-1), (half,)),
        "max_pool2d": (lambda a: F.max_pool2d(a, 2), (square.half(),)),
        "log_softmax": (lambda a: F.log_softmax(a, -1), (half,)),
    }  # fmt: skip


class Alone(nn.Module):
    """One op; its inputs are its parameters."""

    def __init__(self, op: Callable[..., Tensor], inputs: Iterable[Tensor]) -> None:
        super().__init__()
        self.op, self.inputs = op, nn.ParameterList(nn.Parameter(t) for t in inputs)

    def forward(self, weight: Tensor) -> Tensor:
        # Of magnitudes: a mean that cancels out would make much of a last place.
        return (self.op(*self.inputs).float().abs() * weight).mean()


def by_site(model: nn.Module, batch: Tensor, device: torch.device, unit: str = "") -> dict[str, Any]:
    """The same pass, emulated on the CPU and run on the device, tensor by tensor."""
    return compared(recorded(model.to(CPU), batch, CPU), recorded(model.to(device), batch, device), unit)


def compared(
    emulated: Iterable[SiteRecord], real: Iterable[SiteRecord], unit: str = "", most: int = 40
) -> dict[str, Any]:
    """How many sites pair, differ in dtype, or in absmax by more than one ulp; the first ``most`` of each.

    An ulp is one of the tensor's dtype, or of ``unit``, if that is named.
    """
    ours, theirs = ({r.site.key: r.stats for r in records} for records in (emulated, real))
    paired = [key for key in ours if key in theirs]
    dtypes = [[k, ours[k].dtype, theirs[k].dtype] for k in paired if ours[k].dtype != theirs[k].dtype]
    off: list[list[Any]] = []
    for key in paired:
        a, b = ours[key], theirs[key]
        if a.dtype == b.dtype and a.absmax is not None and b.absmax is not None:
            distance = ulps(a.absmax, b.absmax, getattr(torch, unit or a.dtype))
            if distance > 1:
                off.append([key, a.dtype, a.absmax, b.absmax, distance])
        elif a.absmax != b.absmax and a.dtype == b.dtype:
            off.append([key, a.dtype, a.absmax, b.absmax, None])  # finite on one of them only
    alone_here = [k for k in ours if k not in theirs]
    alone_there = [k for k in theirs if k not in ours]
    return {
        "paired": len(paired),
        "emulated_only": {"count": len(alone_here), "first": alone_here[:most]},
        "real_only": {"count": len(alone_there), "first": alone_there[:most]},
        "other_dtype": {"count": len(dtypes), "first": dtypes[:most]},
        "absmax_off_by_more_than_one_ulp": {"count": len(off), "first": off[:most]},
    }


def ulps(a: float, b: float, dtype: torch.dtype) -> float:
    """The distance of two magnitudes, in units of the last place of the larger one in ``dtype``."""
    info = torch.finfo(dtype)
    larger = max(a, b, info.smallest_normal)
    return abs(a - b) / (info.eps * 2.0 ** (math.frexp(larger)[1] - 1))


# ---------------------------------------------------------------- all of it


def measured(device: torch.device, rounds: int, small: bool) -> dict[str, Any]:
    """The whole document. ``on_a_gpu`` says whether its numbers mean anything."""
    elements = 1 << (14 if small else 28)
    return {
        "schema": SCHEMA,
        "on_a_gpu": device.type == "cuda",
        "device": device_name(device),
        "versions": {"ampdoctor": VERSION, "torch": torch.__version__, "python": platform.python_version()},
        "triton": triton_version(),
        "steps": {n: step_ratio(m, b, device, rounds) for n, (m, b) in models(small).items()},
        "bandwidth": [
            bandwidth(dtype, elements, device, rounds)
            for dtype in (torch.float16, torch.bfloat16, torch.float32)
        ],
        "single_ops": {n: by_site(Alone(*op), torch.ones(()), device) for n, op in single_ops().items()},
        # Small ones in any case: every product runs on the CPU as well. Half's roundings differ along the way
        # and reach the FP32 tensors behind them, so one of half's ulps is the unit of all.
        "models": {n: by_site(m, b, device, "float16") for n, (m, b) in models(True).items()},
        "kernel_refusal": fused.refusal(),
    }


def triton_version() -> str | None:
    """None where there is no Triton."""
    kernel = fused._kernel()
    return None if kernel is None else str(kernel.triton.__version__)


def words(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, or cpu for a dry run")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--small", action="store_true", help="small models and tensors: to try the script")
    parser.add_argument("-o", "--output", type=Path, default=Path("cuda.json"))
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no GPU here; --device cpu --small goes through the script without one")
    answer = measured(device, options.rounds, options.small)
    options.output.write_text(json.dumps(answer, indent=1) + "\n")
    if device.type != "cuda":
        print("A dry run, on a CPU: its times and comparisons are no answer.")
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()

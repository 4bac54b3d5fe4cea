"""What watching a training loop costs: steps watched and not watched, in turn, in one process.

    python benchmarks/run_overhead.py [--steps 40] [--record]

With --record the flight recorder is armed as well: it looks at each step's loss and gradient norm.
Prints, for plain steps of 50 ms and more, the median of the ratio of a watched step to the plain one
next to it, that of another plain step to the same one (how far from 1 noise alone takes it), and how
long each took: the process's CPU time, which other load on the machine lengthens less than the clock's.
Nothing is examined: `ampdoctor run` does that in one step, and it takes seconds.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from ampdoctor.api.bundle_write import Shelf
from ampdoctor.api.flight import Flight
from ampdoctor.api.script_capture import Capture
from ampdoctor.live.recorder import Recorder
from ampdoctor.live.trigger import Trigger
from ampdoctor.live.watch import LoopWatch

__ampdoctor_calls_user_code__ = True


def transformer() -> Callable[[], None]:
    """A step of a small transformer: few large calls, 100 parameters."""
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    return training(nn.TransformerEncoder(layer, 8, enable_nested_tensor=False), torch.randn(4, 64, 256))


def network() -> Callable[[], None]:
    """A step of a convolutional network with norms: buffers that move."""
    blocks = [m for _ in range(8) for m in (nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())]
    return training(nn.Sequential(nn.Conv2d(3, 32, 3), *blocks), torch.randn(24, 3, 32, 32))


def many_parameters() -> Callable[[], None]:
    """A step with 800 parameters: what is looked up for each of them."""
    blocks = [m for _ in range(400) for m in (nn.Linear(96, 96), nn.Tanh())]
    return training(nn.Sequential(*blocks), torch.randn(64, 96))


def training(model: nn.Module, batch: torch.Tensor) -> Callable[[], None]:
    """One step: autocast, scaler, clipping, Adam, a scheduler and a logged loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1000)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(batch)
        loss = functional.mse_loss(out.float(), torch.zeros_like(out, dtype=torch.float32))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        loss.item()

    return step


def seconds(step: Callable[[], None]) -> float:
    """Of one step."""
    started = time.process_time()
    step()
    return time.process_time() - started


def measure(step: Callable[[], None], steps: int, record: bool) -> tuple[float, float, float, float]:
    """(median of the ratios, that of two plain steps, median watched, median plain); times in seconds."""
    recorder = Recorder("benchmark")
    flight = Flight(recorder, Shelf(Path(tempfile.gettempdir()) / "run_overhead"), Trigger())
    capture = Capture(recorder, flight.turn if record else lambda *_: None, lambda _: None)
    for _ in range(3):
        step()
    rounds = []
    for turn in range(steps):
        order = ("watched", "plain", "again")
        times = {}
        for kind in order[turn % 3 :] + order[: turn % 3]:  # none is always the last
            if kind == "watched":
                with LoopWatch(recorder, capture):
                    times[kind] = seconds(step)
            else:
                times[kind] = seconds(step)
        rounds.append(times)
    return (
        statistics.median(t["watched"] / t["plain"] for t in rounds),
        statistics.median(t["again"] / t["plain"] for t in rounds),
        statistics.median(t["watched"] for t in rounds),
        statistics.median(t["plain"] for t in rounds),
    )


def main() -> None:
    """Prints a line per model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    for make in (transformer, network, many_parameters):
        ratio, noise, watched, plain = measure(make(), options.steps, options.record)
        print(
            f"{make.__name__:16} {ratio:.3f}  plain again {noise:.3f}  "
            f"watched {1e3 * watched:.1f} ms, plain {1e3 * plain:.1f} ms"
        )


if __name__ == "__main__":
    main()

"""How long reading every loss scale out of a trace takes: 3,000 gradient tensors of 40 exponents each.

python benchmarks/scale_reading.py
"""

from __future__ import annotations

import time

from ampdoctor.facts.floats import FLOAT16
from ampdoctor.facts.histogram import ExponentHistogram
from ampdoctor.facts.site import Site
from ampdoctor.facts.stats import TensorStats
from ampdoctor.scales.powers_of_two import GradientTensor, most_flushed, predicted_window, sweep

TENSORS, EXPONENTS, REPEATS = 3000, 40, 5


def tensor(index: int) -> GradientTensor:
    """One of 40 exponents, 2^-40 to 2^-1 at loss scale 1, recorded at 2^16."""
    counts = dict.fromkeys(range(-24, -24 + EXPONENTS), 1000 + index % 7)
    stats = TensorStats(
        dtype="float16", shape=(sum(counts.values()),), min=-1.0, max=1.0, absmax=1.0, nan=0, inf=0, zeros=0,
        flushed=0, overflowed=0, histogram=ExponentHistogram(counts, powers={-24: 1}),
    )  # fmt: skip
    site = Site("backward", f"layers.{index}", "aten::mm", 0)
    return GradientTensor(site, None, "aten::mm", 0, FLOAT16, 0.5, stats, 16, stats.histogram.nonzero)


def main() -> None:
    tensors = [tensor(i) for i in range(TENSORS)]
    best = float("inf")
    for _ in range(REPEATS):
        started = time.perf_counter()
        sweep(tensors)
        predicted_window(tensors, 0.01, 1.0)
        most_flushed(tensors, 3)
        best = min(best, time.perf_counter() - started)
    print(f"{TENSORS:,} tensors, every scale from 2^0 to 2^32: {best:.3f} s (best of {REPEATS})")


if __name__ == "__main__":
    main()

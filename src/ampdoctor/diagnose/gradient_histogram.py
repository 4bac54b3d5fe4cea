"""The report's gradient histograms: all low-precision gradients together, and by module."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ampdoctor.diagnose.report import GradientBins, GradientHistogram
from ampdoctor.facts.histogram import ExponentHistogram, exponent_of
from ampdoctor.facts.trace import Trace
from ampdoctor.scales.gradient_view import gradients_to_sweep
from ampdoctor.scales.powers_of_two import HIGHEST, LOWEST, GradientTensor


def gradient_histogram_of(trace: Trace) -> GradientHistogram | None:
    """The histograms of the passes that a search for a loss scale reads; None where there is none."""
    tensors = gradients_to_sweep(trace)
    if not tensors:
        return None
    by_module: dict[str, list[_Shifted]] = defaultdict(list)
    shifted = [_shifted(t) for t in tensors]
    for one in shifted:
        by_module[one.tensor.site.module].append(one)
    order = {m.path: i for i, m in enumerate(trace.modules)}
    return GradientHistogram(
        dtype=Counter(t.fmt.name for t in tensors).most_common(1)[0][0],
        total=_bins("", shifted),
        layers=tuple(
            _bins(module, by_module[module])
            for module in sorted(by_module, key=lambda module: order.get(module, len(order)))
        ),
    )


@dataclass(frozen=True)
class _Shifted:
    """A tensor, and what is left of it at every loss scale."""

    tensor: GradientTensor
    kept: tuple[int, ...]
    """Elements that are nonzero after rounding at loss scale 2^0, 2^1, ... 2^32."""


def _shifted(tensor: GradientTensor) -> _Shifted:
    histogram = tensor.stats.histogram
    smallest = exponent_of(tensor.fmt.flush_at) + tensor.recorded_at
    kept = (
        sum(n for e, n in histogram.counts.items() if e >= smallest - k)
        - histogram.powers.get(smallest - k, 0)
        for k in range(LOWEST, HIGHEST + 1)
    )
    return _Shifted(tensor, tuple(kept))


def _bins(module: str, shifted: Sequence[_Shifted]) -> GradientBins:
    tensors = [one.tensor for one in shifted]
    histogram = sum((t.stats.histogram.shift(-t.recorded_at) for t in tensors), ExponentHistogram())
    nonzero = sum(t.nonzero for t in tensors)
    left = [sum(min(one.kept[k], one.tensor.nonzero) for one in shifted) for k in range(len(shifted[0].kept))]
    shares = [max(0.0, 1.0 - n / nonzero) if nonzero else 0.0 for n in left]
    while shares and shares[-1] == 0:
        shares.pop()
    return GradientBins(
        module,
        replace(
            histogram,
            counts=dict(sorted(histogram.counts.items())),
            powers=dict(sorted(histogram.powers.items())),
        ),
        nonzero,
        max(t.absmax for t in tensors),
        tuple(shares),
    )

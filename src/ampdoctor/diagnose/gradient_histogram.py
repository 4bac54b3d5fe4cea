"""The report's gradient histograms: all low-precision gradients together, and by module."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

from ampdoctor.diagnose.report import GradientBins, GradientHistogram
from ampdoctor.facts.histogram import ExponentHistogram
from ampdoctor.facts.trace import Trace
from ampdoctor.scales.powers_of_two import GradientTensor, counted, shares_zeroed
from ampdoctor.scales.recordings import gradients_of


def gradient_histogram_of(trace: Trace) -> GradientHistogram | None:
    """The histograms of the passes that a search for a loss scale reads; None where there is none."""
    tensors = counted(gradients_of(trace))
    if not tensors:
        return None
    by_module: dict[str, list[GradientTensor]] = defaultdict(list)
    for t in tensors:
        by_module[t.site.module].append(t)
    order = {m.path: i for i, m in enumerate(trace.modules)}
    return GradientHistogram(
        dtype=Counter(t.fmt.name for t in tensors).most_common(1)[0][0],
        total=_bins("", tensors),
        layers=tuple(
            _bins(module, by_module[module])
            for module in sorted(by_module, key=lambda module: order.get(module, len(order)))
        ),
    )


def _bins(module: str, tensors: Sequence[GradientTensor]) -> GradientBins:
    histogram = sum((t.stats.histogram.shift(-t.recorded_at) for t in tensors), ExponentHistogram())
    shares = shares_zeroed(tensors)
    while shares and shares[-1] == 0:
        shares.pop()
    return GradientBins(
        module,
        replace(
            histogram,
            counts=dict(sorted(histogram.counts.items())),
            powers=dict(sorted(histogram.powers.items())),
        ),
        sum(t.nonzero for t in tensors),
        max(t.absmax for t in tensors),
        tuple(shares),
    )

"""Reports for the HTML page's tests, with gradients whose shares can be worked out on paper."""

from __future__ import annotations

import math
from dataclasses import replace

from ampdoctor.diagnose.engine import diagnose
from ampdoctor.diagnose.report import GradientBins, GradientHistogram, LossScale, Report
from ampdoctor.facts.histogram import ExponentHistogram
from trace_builder import birth, candidate, module, parameter, record, reference, trace

TOTAL = GradientBins(
    "",
    # of the two elements at 2^-25 one is exactly that: a tie, which FP16 rounds to zero
    ExponentHistogram({-30: 1, -25: 2, -20: 4, 0: 8, 14: 1}, powers={-25: 1}),
    nonzero=16,
    absmax=1.5 * 2**14,
    underflow_fraction=(2 / 16, 1 / 16, 1 / 16, 1 / 16, 1 / 16),
)
ATTENTION = GradientBins(
    "attention",
    ExponentHistogram({-26: 3, 3: 1}, powers={-26: 1}),
    nonzero=4,
    absmax=12.0,
    underflow_fraction=(3 / 4, 1 / 4),
)
HEAD = GradientBins("head", ExponentHistogram({15: 2}), nonzero=2, absmax=65520.0, underflow_fraction=())
HISTOGRAM = GradientHistogram("float16", TOTAL, (ATTENTION, HEAD))

SCALES = LossScale(
    configured=1.0,
    recommended=2.0,
    window=(2.0, 2.0),
    verified=True,
    searched=True,
    underflow_fraction={
        "1": 0.125,
        "2": 0.0625,
        **{str(2**k): None for k in range(2, 33)},
    },
    lost_fraction={"1": 0.25, "4": None},
    limited_by={"module": "head", "op": "aten::mm", "forward_op": "aten::addmm", "source": None},
)


def gradients() -> Report:
    """A scan at loss scale 1 whose gradients are those above; only 2 works."""
    report = diagnose(trace())
    return replace(report, gradient_histogram=HISTOGRAM, loss_scale=SCALES)


def layered(count: int = 3) -> Report:
    """``count`` layers: layer0 with the least headroom, and so on; the last was not in low precision."""
    last = count - 1
    sites = [record(f"layer{i}", "aten::mm", i, 2.0 ** (14 - i)) for i in range(last)]
    sites.append(record(f"layer{last}", "aten::mm", last, 2.0**20, dtype="float32"))
    modules = [module(f"layer{i}", "Linear" if i else "Conv2d", calls=10 * (i + 1)) for i in range(count)]
    return diagnose(
        trace(modules=tuple(modules), passes=(reference(), candidate(sites=tuple(sites))), births=())
    )


def overflow() -> Report:
    """A feed-forward layer that overflows, and what led up to it."""
    sites = (
        record("blocks.1.ff.wi", "aten::mm", 1, 1024.0),
        record("blocks.1.ff.wo", "aten::mm", 10, 60000.0, inf=18),
    )
    sick = candidate(loss=math.nan, parameters=(parameter("w", nan=100, absmax=None),), sites=sites)
    modules = (module("", "T5"), module("blocks.1.ff.wi"), module("blocks.1.ff.wo"))
    return diagnose(trace(modules=modules, births=(birth(),), passes=(reference(), sick)))

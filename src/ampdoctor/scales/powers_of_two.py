"""The arithmetic of loss scales: what one recorded backward says about every other power of two.

Multiplying the loss by 2^k multiplies every gradient by 2^k, exactly, until a format rounds it. So the
histogram of a tensor *before* rounding, shifted by k, gives the zeros and the overflows of that tensor at the
other scale. What it leaves out: a value that becomes zero upstream is zero downstream as well, even where it
would have been multiplied back into the range; the share that is lost at a low scale is at least the share
given here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ampdoctor.facts.floats import FLOAT_FORMATS, FloatFormat
from ampdoctor.facts.histogram import exponent_of
from ampdoctor.facts.site import Site, Source
from ampdoctor.facts.stats import TensorStats
from ampdoctor.facts.trace import Pass, SiteRecord

LOWEST, HIGHEST = 0, 32
"""Exponents of the loss scales that a sweep covers."""
ROOT_SCALE = 2.0**LOWEST
"""The scale at which backward is looked at for a fault that a high scale hides. An overflow there, or below,
is one that no scale worth using avoids: lower ones lose what FP32 has."""
HIGHEST_RECOMMENDED = 24
"""Exponent of the highest scale that is recommended: a gradient that needs more lies below 2^-49, where the
FP32 sums of an optimizer do not see it either."""
LOW_PRECISION = ("float16", "bfloat16")


@dataclass(frozen=True)
class GradientTensor:
    """One low-precision tensor of a recorded backward, as it is at loss scale 1."""

    site: Site
    source: Source | None
    forward_op: str
    batch: int
    fmt: FloatFormat
    absmax: float
    """Largest magnitude before rounding, divided by the loss scale of the recording."""
    stats: TensorStats
    recorded_at: int
    """Exponent of the loss scale of the recording."""
    nonzero: int
    """Elements that are not zero in the reference; where it has no such site (a cast), before rounding."""
    parameter: str = ""
    """The parameter whose gradient this is; '' for a gradient on its way."""
    rounds: bool = True
    """The values were seen before they were rounded here, not only moved."""
    from_reference: bool = False
    """``stats`` are of the FP32 pass: every run has lost some of these values on their way here."""

    def overflows(self, exponent: int, fmt: FloatFormat | None = None) -> bool:
        """True where an element rounds to inf at loss scale 2^exponent."""
        return math.ldexp(self.absmax, exponent) >= (fmt or self.fmt).overflow_at

    def kept(self, exponent: int, fmt: FloatFormat | None = None) -> int:
        """Elements that are still nonzero after rounding at loss scale 2^exponent."""
        histogram = self.stats.histogram
        low = exponent_of((fmt or self.fmt).flush_at) + self.recorded_at - exponent
        return sum(n for e, n in histogram.counts.items() if e >= low) - histogram.powers.get(low, 0)

    def kept_by_scale(self, fmt: FloatFormat | None = None) -> list[int]:
        """``kept`` at every power of two from 2^0 to 2^32, in one walk over the exponents.

        Never more than ``nonzero``: noise around a zero of the reference is no gradient that is kept.
        """
        counts, powers = self.stats.histogram.counts, self.stats.histogram.powers
        low = exponent_of((fmt or self.fmt).flush_at) + self.recorded_at - LOWEST
        above = sum([n for e, n in counts.items() if e > low])
        found = []
        for edge in range(low, low - (HIGHEST - LOWEST) - 1, -1):
            above += counts.get(edge, 0)
            found.append(min(above - powers.get(edge, 0), self.nonzero))
        return found

    @property
    def came_in_as_zero(self) -> int:
        """Elements that are zero before rounding and nonzero in the reference: an earlier op lost them."""
        return max(0, self.nonzero - self.stats.histogram.nonzero)

    @property
    def ceiling(self) -> int:
        """Exponent of the largest power of two at which nothing here overflows."""
        return ceiling_of(self.absmax, self.fmt)


@dataclass(frozen=True)
class ScalePoint:
    """What the recordings say about one loss scale."""

    exponent: int
    overflowing: int
    """Tensors in which an element overflows."""
    overflowed_elements: int
    """Elements of magnitude 2^16 and above, in FP16: not those of 65520 to there."""
    underflow_fraction: float
    """Elements that become zero, of those nonzero in the reference, over all tensors that round."""
    bound: str | None = None
    """``lower``: the true share is this or more; None: the share is what was seen, or exact."""
    run: bool = False
    """The share was seen in a run at this scale; else it is predicted from another recording."""
    predicted: float | None = None
    """Where it was run: what was predicted of it."""


def ceiling_of(absmax: float, fmt: FloatFormat) -> int:
    """The largest k for which absmax * 2^k does not round to inf."""
    if absmax <= 0:
        return HIGHEST
    k = math.frexp(fmt.overflow_at)[1] - math.frexp(absmax)[1]
    return k if math.ldexp(absmax, k) < fmt.overflow_at else k - 1


def is_power_of_two(scale: float) -> bool:
    """True for a scale that shifts exponents and changes no mantissa."""
    return math.frexp(scale)[0] == 0.5


def gradient_tensors(recorded: Pass, reference: Pass | None) -> list[GradientTensor]:
    """The low-precision tensors of a pass's backward; [] where its scale is no power of two.

    ``recorded`` must be finite in backward but for what is infinite by design, which is left out.
    """
    if not is_power_of_two(recorded.loss_scale):
        return []
    twins = {r.site: r for r in reference.sites if r.site.phase == "backward"} if reference else {}
    return [
        _tensor(r, recorded, twins.get(r.site))
        for r in recorded.sites
        if r.site.phase == "backward"
        and r.stats.dtype in LOW_PRECISION
        and r.stats.numel
        and r.stats.is_finite
    ]


def exact_tensors(candidate: Pass, reference: Pass) -> list[GradientTensor]:
    """The same tensors as the reference has them, in FP32 at loss scale 1, where nothing was lost on the way.

    A cast has no twin there. These say what other formats, or a part of the model in FP32, would do.
    """
    twins = {r.site: r for r in reference.sites if r.site.phase == "backward"}
    return [
        replace(_tensor(replace(twin, source=r.source), reference, None), fmt=FLOAT_FORMATS[r.stats.dtype])
        for r in candidate.sites
        if r.site.phase == "backward"
        and r.stats.dtype in LOW_PRECISION
        and r.stats.numel
        and (twin := twins.get(r.site)) is not None
        and twin.stats.is_finite
    ]


def _tensor(record: SiteRecord, recorded: Pass, twin: SiteRecord | None) -> GradientTensor:
    stats = record.stats
    exponent = math.frexp(recorded.loss_scale)[1] - 1
    before = stats.absmax_before_rounding
    absmax = before if before is not None else stats.absmax or 0.0
    paired = twin is not None and twin.stats.numel == stats.numel
    return GradientTensor(
        record.site,
        record.source,
        record.forward_op,
        recorded.batch,
        FLOAT_FORMATS[stats.dtype],
        math.ldexp(absmax, -exponent),
        stats,
        exponent,
        twin.stats.histogram.nonzero if twin is not None and paired else stats.histogram.nonzero,
        record.parameter,
        stats.flushed is not None,
    )


def limiting(tensors: Iterable[GradientTensor]) -> GradientTensor | None:
    """The tensor that overflows first as the scale rises; of several, the one backward makes first."""
    return max(tensors, key=lambda t: t.absmax / t.fmt.overflow_at, default=None)


def shares_zeroed(tensors: Sequence[GradientTensor], fmt: FloatFormat | None = None) -> list[float]:
    """Elements that become zero, of those nonzero in the reference, at 2^0, 2^1 ... 2^32.

    Over the tensors that round; over all of them where no rounding was seen.
    """
    rounding = counted(tensors)
    nonzero = sum(t.nonzero for t in rounding)
    if not nonzero:
        return [0.0] * (HIGHEST - LOWEST + 1)
    kept = map(sum, zip(*(t.kept_by_scale(fmt) for t in rounding), strict=True))
    return [max(0.0, 1.0 - n / nonzero) for n in kept]


def most_flushed(tensors: Sequence[GradientTensor], exponent: int) -> GradientTensor | None:
    """The tensor that loses most elements at loss scale 2^exponent; None where none loses any."""
    rounding = counted(tensors)
    lost = [(t.nonzero - t.kept(exponent), -i) for i, t in enumerate(rounding)]
    most, position = max(lost, default=(0, 0))
    return rounding[-position] if most > 0 else None


def counted(tensors: Sequence[GradientTensor]) -> list[GradientTensor]:
    """Of each batch those that round; all of them where no rounding was seen (a GPU's kernels, FP32)."""
    rounding = {t.batch for t in tensors if t.rounds}
    return [t for t in tensors if t.rounds or t.batch not in rounding]


def sweep(tensors: Sequence[GradientTensor], fmt: FloatFormat | None = None) -> list[ScalePoint]:
    """One point per power of two from 2^0 to 2^32, as the recordings predict it."""
    overflowing, elements = Counter[int](), Counter[int]()
    for t in tensors:
        chosen = fmt or t.fmt
        overflowing[ceiling_of(t.absmax, chosen)] += 1
        shift = -t.recorded_at - chosen.max_exponent
        for e, n in t.stats.histogram.counts.items():
            elements[e + shift] += n
    bound = max((HIGHEST + 1 if t.from_reference else t.recorded_at for t in tensors), default=LOWEST)
    return [
        ScalePoint(
            k,
            sum(n for ceiling, n in overflowing.items() if ceiling < k),
            sum(n for e, n in elements.items() if e + k > 0),
            share,
            "lower" if share and k < bound else None,
        )
        for k, share in zip(range(LOWEST, HIGHEST + 1), shares_zeroed(tensors, fmt), strict=True)
    ]


def ceiling_for(tensors: Sequence[GradientTensor], fmt: FloatFormat | None = None) -> int:
    """Exponent of the highest power of two at which none of these overflows."""
    return min((ceiling_of(t.absmax, fmt or t.fmt) for t in tensors), default=HIGHEST)


def top_below(ceiling: int, margin_bits: float) -> int | None:
    """Exponent of the window's high end; without room for the margin the ceiling; None below 2^0."""
    if ceiling < LOWEST:
        return None
    top = ceiling - math.ceil(margin_bits)
    return min(top if top >= LOWEST else ceiling, HIGHEST)


def recommended_in(low: int, high: int) -> int:
    """Exponent of the scale to use in a window: its top, but no higher than any gradient needs."""
    return max(low, min(high, HIGHEST_RECOMMENDED))


def floor_of(shares: Sequence[float], limit: float) -> int | None:
    """The smallest exponent at which less than ``limit`` of the elements become zero; None up to 2^32."""
    return next((LOWEST + i for i, share in enumerate(shares) if share < limit), None)


def predicted_window(
    tensors: Sequence[GradientTensor], limit: float, margin_bits: float, fmt: FloatFormat | None = None
) -> tuple[int, int] | None:
    """Exponents of the lowest and the highest scale that work by the histograms; None where none does."""
    high = top_below(ceiling_for(tensors, fmt), margin_bits)
    low = floor_of(shares_zeroed(tensors, fmt), limit)
    return None if low is None or high is None or low > high else (low, high)

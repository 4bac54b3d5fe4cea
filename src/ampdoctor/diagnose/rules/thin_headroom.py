"""AMP103: thin headroom

What it means
    Nothing overflows in this batch, but a low-precision tensor of the forward
    comes within limits.headroom_bits (1 by default: a factor of two) of the
    end of its format. Another batch, or another thousand steps, may go over.
    Headroom is log2(65,504 / largest magnitude).

How it is found
    The largest finite magnitude of every tensor made in low precision. Masks
    are left out: a tensor that holds the format's lowest value on purpose,
    and ops that only write a constant. So are FP8 tensors: their scale puts
    the largest value at the end on purpose. The modules of one numbered stack
    are one finding, at the loudest.

What to do
    Watch this layer, or run it in FP32 now. Scaling the branch down, or
    weight decay on it, buys bits too.

Example
    Residual streams of large language models grow layer by layer; at 40,000
    half a bit is left.

Sources
    huggingface/transformers#12225 (Pegasus: 60,600 in one leaf, inf one
    addition later).
"""

from __future__ import annotations

from collections.abc import Iterable

from ampdoctor.diagnose.amounts import headroom_left
from ampdoctor.diagnose.headroom import headroom_bits
from ampdoctor.diagnose.masks import is_mask
from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.rule import Rule
from ampdoctor.diagnose.standing import FAULT, SILENT
from ampdoctor.diagnose.verdict import Reading
from ampdoctor.diagnose.wording import format_name, number
from ampdoctor.facts.floats import FLOAT_FORMATS
from ampdoctor.facts.trace import SiteRecord


def check(reading: Reading) -> Iterable[Finding]:
    """One finding per module whose loudest tensor is nearly out of range, unless a fault is born there."""
    born = {j.birth.site.module for j in reading.births if j.standing in (FAULT, SILENT) and j.birth.site}
    loudest: dict[str, SiteRecord] = {}
    for candidate in (p for p in reading.trace.passes if p.role == "candidate"):
        for record in candidate.sites:
            module = record.site.module
            if record.site.phase == "forward" and module not in born and _is_thin(record, reading):
                known = loudest.get(module)
                if known is None or (record.stats.absmax or 0) > (known.stats.absmax or 0):
                    loudest[module] = record
    return [_finding(record, reading) for record in loudest.values()]


def _is_thin(record: SiteRecord, reading: Reading) -> bool:
    if record.stats.dtype.startswith("float8"):
        return False  # FP8 is used with a scale that puts the largest value at the end of the format
    bits = headroom_bits(record.stats.absmax, record.stats.dtype)
    return bits is not None and bits < reading.policy.headroom_of(record.site.module) and not is_mask(record)


def _finding(record: SiteRecord, reading: Reading) -> Finding:
    stats = record.stats
    bits = headroom_bits(stats.absmax, stats.dtype) or 0.0
    largest = FLOAT_FORMATS[stats.dtype].max
    return Finding(
        code=CODE,
        severity="warning",
        title=TITLE,
        module=record.site.module,
        op=record.site.op,
        source=record.source,
        message=f"The largest value is {number(stats.absmax)}: {bits:.1f} bits below the end of "
        f"{format_name(stats.dtype)}, {number(largest)}.",
        evidence={
            "absmax": stats.absmax,
            "headroom_bits": bits,
            "limit_bits": reading.policy.headroom_of(record.site.module),
            "largest": largest,
            "dtype": stats.dtype,
        },
        amounts=headroom_left(bits, reading.policy.headroom_of(record.site.module)),
        remedy="Watch this layer, scale its values down, or keep it in FP32 before a batch overflows.",
    )


CODE, TITLE = "AMP103", "thin headroom"
RULE = Rule(CODE, TITLE, "warning", __doc__ or "", check)

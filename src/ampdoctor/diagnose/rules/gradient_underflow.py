"""AMP203: gradient underflow

What it means
    Gradients became zero by rounding. FP16 keeps nothing at or below 2^-25
    (3e-8); activation gradients of a mean over many elements lie there.
    Nothing turns NaN, the loss goes down a little, and the layers that
    receive zeros do not learn.

How it is found
    Each parameter's gradient is compared with the FP32 pass: elements that
    are nonzero there and zero here are lost. A parameter counts as damaged
    when it loses more than a fifth of them and its gradient is off by more
    than 5 %. Gradients that are zero in FP32 too never count, nor do those
    that are mere rounding noise around zero (a bias in front of a BatchNorm,
    the bias of an attention key). Nor do those that vanish in FP32 too: below
    2^-45 (3e-14) of the largest gradient of the model, or below that number.
    Adam's eps is 1e-8; no precision trains anything with them. That is told
    as information. So is a gradient of which little is zeroed and few digits
    are left at the highest scales that do not overflow.

What to do
    Use a loss scale (torch.amp.GradScaler), or a higher one. Where a higher
    one overflows elsewhere, run the layer that overflows in FP32, or rescale
    that loss term. BF16 has FP32's exponents and needs no scale.

Example
    Autocast without GradScaler and a loss of 1e-4: 99 % of the gradient
    elements are zero.

Sources
    NVIDIA/apex#377, nerfstudio-project/nerfacc#307,
    engichang1467/Open-Rig3R#35.
"""

from __future__ import annotations

from collections.abc import Iterable

from ampdoctor.diagnose.amounts import gradient_lost
from ampdoctor.diagnose.drift import still_underflow
from ampdoctor.diagnose.outcome import GradientDamage, find_pass, is_healthy, what_is_lost
from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.rule import Rule
from ampdoctor.diagnose.standing import SILENT
from ampdoctor.diagnose.verdict import Reading
from ampdoctor.diagnose.wording import count_words, number, percent, scale, short_op
from ampdoctor.facts.trace import SiteRecord
from ampdoctor.scales.gradient_harm import lost_fraction, vanishing

_MOSTLY_FLUSHED = 0.2
"""A backward op that zeroes this share of its elements is where the loss of gradient begins."""


def check(reading: Reading) -> Iterable[Finding]:
    """For the scan: which parameters lose how much, and where that begins; and which FP32 does not train."""
    return (*_underflow(reading), *_vanishes(reading), *_few_digits(reading))


def _vanishes(reading: Reading) -> Iterable[Finding]:
    """Information: gradients that are lost here, and that no precision would train anything with."""
    for run in reading.trace.passes:
        if run.role != "candidate" or not is_healthy(run, reading.trace.environment.forward_only):
            continue
        lost = [p for p in vanishing(run.parameters) if p.lost]
        if lost:
            worst = lost[0]
            yield Finding(
                code=CODE,
                severity="info",
                title="gradient vanishes in FP32 too",
                module=worst.name.rpartition(".")[0],
                op="",
                source=None,
                message=(
                    f"The gradient of {count_words(len(lost), 'parameter')} vanishes in FP32 too: the "
                    f"largest is {number(worst.reference_absmax)}, of {worst.name}. That trains nothing in "
                    "any precision, and no loss scale is judged by it."
                ),
                evidence={"parameters": {p.name: p.reference_absmax for p in lost}},
                whole_scan=True,
                remedy="Give this term of the loss more weight, or leave the parameters out of training.",
            )
            return


def _few_digits(reading: Reading) -> Iterable[Finding]:
    """Information: gradients of which rounding near zero leaves no digits at the judged scale, though it
    zeroes few; a higher scale would overflow or was found to be no better."""
    if reading.damage is not None and reading.damage.damaged:
        return
    for batch in range(reading.trace.environment.batches):
        far = still_underflow(reading.trace, batch)
        if far:
            worst = far[0]
            yield Finding(
                code=CODE,
                severity="info",
                title="few digits left of a small gradient",
                module=worst.name.rpartition(".")[0],
                op="",
                source=None,
                message=(
                    f"The gradient of {count_words(len(far), 'parameter')} keeps few digits at scale "
                    f"{scale(reading.trace.loss_scale)}: worst {worst.name}, off by "
                    f"{percent(worst.relative_error)}, where its largest element is "
                    f"{number(worst.reference_absmax)}. At the next lower scale run it is further off."
                ),
                evidence={"parameters": {p.name: p.relative_error for p in far}},
                whole_scan=True,
                remedy="Nothing, if these parameters need not move yet; else train in BF16.",
            )
            return


def _underflow(reading: Reading) -> Iterable[Finding]:
    damage = reading.damage
    if reading.basis is not None and reading.basis.standing == SILENT:
        return ()  # an infinity that was absorbed in forward took the gradients with it
    if damage is None or not damage.damaged:
        return ()
    environment = reading.trace.environment
    candidate = find_pass(reading.trace, "candidate", damage.batch, reading.trace.loss_scale)
    if candidate is None or not is_healthy(candidate, environment.forward_only):
        return ()  # zeros next to NaN are no underflow
    begins = _where_it_begins(candidate.sites)
    site = begins.site if begins else None
    return (
        Finding(
            code=CODE,
            severity="error" if reading.verdict == "gradient-underflow" else "warning",
            title=TITLE,
            module=site.module if site else "",
            op=site.op if site else "",
            source=begins.source if begins else None,
            message=_message(damage, candidate.loss_scale) + _begins_words(begins),
            evidence={
                "loss_scale": candidate.loss_scale,
                "lost_fraction": damage.lost_fraction,
                "relative_error": damage.relative_error,
                "parameters": {p.name: lost_fraction(p) for p in damage.damaged},
                "limit": reading.policy.gradient_underflow,
            },
            amounts=gradient_lost(damage.lost_fraction, candidate.loss_scale),
            whole_scan=True,
            remedy=_remedy(reading, candidate.loss_scale),
        ),
    )


def _message(damage: GradientDamage, loss_scale: float) -> str:
    at = f"At scale {scale(loss_scale)}"
    worst = damage.damaged[0]
    lose = "loses" if len(damage.damaged) == 1 else "lose"
    return (
        f"{at}, {count_words(len(damage.damaged), 'parameter')} {lose} much of the gradient to rounding: "
        f"worst {worst.name} ({what_is_lost(worst)}); "
        f"{percent(damage.lost_fraction)} of all elements."
    )


def _where_it_begins(sites: Iterable[SiteRecord]) -> SiteRecord | None:
    """The first backward op that flushes much of what it makes, else the one that flushes most elements."""
    flushing = [r for r in sites if r.site.phase == "backward" and r.stats.flushed]
    for record in sorted(flushing, key=lambda r: r.order):
        before = record.stats.nonzero + (record.stats.flushed or 0)
        if before and (record.stats.flushed or 0) / before > _MOSTLY_FLUSHED:
            return record
    return max(flushing, key=lambda r: r.stats.flushed or 0, default=None)


def _begins_words(record: SiteRecord | None) -> str:
    if record is None:
        return ""
    op = short_op(record.forward_op) or short_op(record.site.op)
    return f" It begins in the backward of {op}{' of ' + record.site.module if record.site.module else ''}."


def _remedy(reading: Reading, loss_scale: float) -> str:
    scales = reading.scales
    if scales is not None and scales.recommended is not None and scales.window is not None:
        best, proof = scale(2.0**scales.recommended), " (run here)" if scales.verified else ""
        low, high = scale(2.0**scales.window.low), scale(2.0**scales.window.high)
        start = "Use a loss scale" if loss_scale <= 1 else "Raise the loss scale"
        return (
            f"{start}: torch.amp.GradScaler(init_scale={2.0**scales.recommended:.0f}); {best} works{proof}, "
            f"by the histograms all from {low} to {high} do. BF16 needs no scale."
        )
    if reading.verdict == "no-workable-scale":
        return "Follow AMP204: a higher loss scale overflows."
    if loss_scale <= 1:
        return "Use a loss scale: torch.amp.GradScaler starts at 65,536 and adapts. BF16 needs none."
    return "Raise the loss scale, or give this loss term more weight. BF16 needs no scale."


CODE, TITLE = "AMP203", "gradient underflow"
RULE = Rule(CODE, TITLE, "error", __doc__ or "", check)

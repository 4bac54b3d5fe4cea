"""AMP201: backward overflow at this loss scale

What it means
    A gradient in low precision leaves the range at the configured loss scale,
    and does not at scale 1. The forward is fine. GradScaler would skip this
    step and halve the scale; if it does so step after step, the scale is too
    high for this model, or one gradient is much larger than the rest.

How it is found
    Backward runs at the configured scale and, if anything is not finite, at
    scale 1 as well. This rule speaks of births that only the higher scale
    has. Severity is warning where another fault comes first, and info where
    no scale works anyway.

What to do
    Lower the scale: torch.amp.GradScaler's init_scale. A loss computed in
    half precision can bear no scale above 65,504, since its first gradient is
    the scale: compute the loss in FP32. A loss that is a sum over tokens or
    pixels has gradients as large as their number: take the mean.

Example
    cross_entropy(reduction="sum") over 4,096 tokens at scale 65,536.

Sources
    Lightning-AI/pytorch-lightning#9799 (a half loss),
    facebookresearch/fairseq#512 (a sum over tokens), pytorch/pytorch#99640 (a
    scale that falls below 1).
"""

from __future__ import annotations

from collections.abc import Iterable

from ampdoctor.diagnose.birth_findings import births_of, findings_by_place, overflow_words
from ampdoctor.diagnose.cause import RANGE
from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.rule import Rule
from ampdoctor.diagnose.scale_limit import limit_words
from ampdoctor.diagnose.standing import JudgedBirth
from ampdoctor.diagnose.verdict import Reading, overflows_at_any_scale
from ampdoctor.diagnose.wording import scale, short_op
from ampdoctor.facts.trace import Birth
from ampdoctor.facts.words import Severity, Verdict

_SEVERITIES: dict[Verdict, Severity] = {"backward-overflow": "error", "no-workable-scale": "info"}


def check(reading: Reading) -> Iterable[Finding]:
    """One finding per place in the backward that overflows at the configured scale and not at the lowest."""
    births = births_of(reading, lambda j: not j.in_forward and j.cause == RANGE)
    at_any_scale = {_place(j) for j in births if overflows_at_any_scale(j.birth)}
    only_here = [j for j in births if _place(j) not in at_any_scale]
    scaler_halves_it = reading.trace.environment.scaler == "dynamic"
    severity = _SEVERITIES.get(reading.verdict, "info" if scaler_halves_it else "warning")
    limit = limit_words(reading.scales) if reading.scales is not None else ""
    limit = f" {limit[0].upper()}{limit[1:]}." if limit else ""
    return findings_by_place(
        CODE, TITLE, only_here, lambda j: _message(j) + limit, lambda j: _remedy(reading, j), severity
    )


def _place(judged: JudgedBirth) -> tuple[int, str]:
    return judged.birth.batch, judged.birth.site.key if judged.birth.site else ""


def _message(judged: JudgedBirth) -> str:
    birth = judged.birth
    of = f"of {short_op(birth.forward_op)} " if birth.forward_op else ""
    return f"The backward {of}overflows at scale {scale(birth.loss_scale)}. {overflow_words(judged)}"


def _remedy(reading: Reading, judged: JudgedBirth) -> str:
    candidates = [p for p in reading.trace.passes if p.role == "candidate" and p.batch == judged.birth.batch]
    if any(p.loss_dtype == judged.birth.dtype for p in candidates):
        return (
            "Compute the loss in FP32 (.float() on what it takes): the first gradient of a half loss is the "
            f"scale itself. Or {_lower_scale(reading)}."
        )
    if _is_half_summand(judged.birth):
        return (
            "A summand of the loss on this line is half, and its first gradient is the scale itself: sum the "
            f"loss in FP32 (.float() on what the summand takes). Or "
            f"{_lower_scale(reading)}."
        )
    lower = _lower_scale(reading)
    lower = f"{lower[0].upper()}{lower[1:]}."
    if reading.verdict == "no-workable-scale":
        return lower
    return f"{lower} If the loss is a sum over tokens or pixels, take the mean."


def _is_half_summand(birth: Birth) -> bool:
    """True for the gradient of a single half number that a sum promoted: a + b, float and half, is float."""
    sums = ("aten::add", "aten::add_", "aten::sub", "aten::sub_", "aten::mul")
    op = birth.site.op if birth.site else ""
    return birth.shape == () and op == "aten::_to_copy" and birth.forward_op in sums


def _lower_scale(reading: Reading) -> str:
    """``start with a lower scale``, and the call to write where one was found; else why there is none."""
    if reading.verdict == "no-workable-scale":
        return "follow AMP204: no loss scale works"
    scales = reading.scales
    lower = f"start with a lower scale than {scale(reading.trace.loss_scale)}"
    if scales is None:
        return f"{lower}: which one works was not measured here"
    if scales.recommended is None:
        return f"{lower}: of those tried here none was found to work"
    proof = " (run here: it is finite)" if scales.verified else ""
    return f"start with a lower scale: GradScaler(init_scale={2.0**scales.recommended:.0f}){proof}"


CODE, TITLE = "AMP201", "backward overflow at this loss scale"
RULE = Rule(CODE, TITLE, "error", __doc__ or "", check)

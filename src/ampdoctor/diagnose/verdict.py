"""The verdict: one word for the whole scan, and the birth, input or exception it rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ampdoctor.diagnose.cause import CANCELLATION, FLUSH, GENUINE, RANGE
from ampdoctor.diagnose.drift import DriftReading, read_drift
from ampdoctor.diagnose.outcome import GradientDamage, find_pass, gradient_damage
from ampdoctor.diagnose.policy import Policy
from ampdoctor.diagnose.standing import (
    FAULT,
    INPUT,
    SILENT,
    JudgedBirth,
    headline_of,
    in_order,
    judge_births,
    only_the_derivative,
    stopped_by_itself,
)
from ampdoctor.diagnose.updates import update_damage
from ampdoctor.diagnose.wording import format_name
from ampdoctor.facts.floats import FLOAT_FORMATS, FloatFormat
from ampdoctor.facts.trace import Birth, Pass, Trace
from ampdoctor.facts.words import Verdict
from ampdoctor.scales.powers_of_two import ROOT_SCALE
from ampdoctor.scales.reading import ScaleReading, best_errors, read_scales

_SOFTMAX = ("aten::_softmax", "aten::_log_softmax", "aten::_safe_softmax", "aten::logsumexp")


@dataclass(frozen=True)
class Reading:
    """A trace, judged: what every rule and every part of the report starts from."""

    trace: Trace
    policy: Policy
    births: tuple[JudgedBirth, ...]
    verdict: Verdict
    basis: JudgedBirth | None
    """The birth the verdict rests on: an op's, or a value that came in. None for the other verdicts."""
    raised: Pass | None
    """The candidate pass that raised where FP32 does not."""
    damage: GradientDamage | None
    scales: ScaleReading | None
    """What is known of loss scales; None where they were not searched."""
    best_errors: Mapping[int, Mapping[str, float | None]]
    """Of each batch the parameters' relative errors at the recommended scale."""
    drift: DriftReading | None = None
    """What is finite and far off; None also where an absorbed infinity explains it."""

    @property
    def fmt_name(self) -> str:
        """``FP16``, ``BF16``."""
        return format_name(self.trace.environment.dtype)

    @property
    def fmt(self) -> FloatFormat:
        """The low-precision format the user asked for."""
        return FLOAT_FORMATS[self.trace.environment.dtype]


def read(trace: Trace, policy: Policy) -> Reading:
    """The trace with its births judged and its verdict found."""
    births = judge_births(trace)
    raised = _raised(trace)
    scales = read_scales(trace, policy.gradient_underflow, policy.scale_margin_bits)
    scales = scales if scales is not None and scales.searched else None
    best = best_errors(trace, scales)
    damage = gradient_damage(trace, best)
    silent = any(j.standing == SILENT for j in births)
    drift = None if silent else read_drift(trace, best)
    verdict, basis = _verdict(trace, births, raised, damage, scales, drift)
    return Reading(trace, policy, births, verdict, basis, raised, damage, scales, best, drift)


def overflows_at_any_scale(birth: Birth) -> bool:
    """True for an overflow in backward that no loss scale worth using avoids."""
    return birth.loss_scale <= ROOT_SCALE


def overflows_even_at_1(judged: JudgedBirth) -> bool:
    """True for a value of backward that leaves the format's range at any scale worth using."""
    return not judged.in_forward and judged.cause == RANGE and overflows_at_any_scale(judged.birth)


def _verdict(
    trace: Trace,
    births: Sequence[JudgedBirth],
    raised: Pass | None,
    damage: GradientDamage | None,
    scales: ScaleReading | None,
    drift: DriftReading | None,
) -> tuple[Verdict, JudgedBirth | None]:
    """The first verdict that holds, in the documented order, and the birth it rests on."""
    bad_input = _bad_input(births)
    if bad_input is not None:
        return "bad-input", bad_input
    headline = headline_of(births)
    if raised is not None and headline is not None and stopped_by_itself(raised):
        return _birth_verdict(headline), headline  # what the model found when it stopped was born there
    if raised is not None:
        holds_no_constant = raised.raised is not None and raised.raised.constant is not None
        return ("forward-overflow" if holds_no_constant else "raises"), None
    no_scale = scales is not None and scales.window is None
    # A forward that is wrong from one op on loses gradient at every scale alike: no scale's fault.
    by_forward = no_scale and scales is not None and scales.ceiling is not None
    by_forward = by_forward and drift is not None and drift.is_forward
    if headline is not None:
        verdict = _birth_verdict(headline)
        if verdict == "backward-overflow" and no_scale:
            verdict = "no-workable-scale"
        if verdict == "no-workable-scale" and scales is not None and scales.ceiling is not None:
            headline = _first_as_configured(births, trace.loss_scale) or headline
        return verdict, headline
    masked = next((j for j in in_order(births) if _spoils_gradients(j)), None)
    if masked is not None:
        return "backward-undefined", masked
    if _nothing_measured(trace):
        return "not-measured", None
    if no_scale and not by_forward:
        return "no-workable-scale", None
    if damage is not None and damage.damaged and not by_forward:
        return "gradient-underflow", None
    update = update_damage(trace)
    if update is not None and update.harms:
        return "update-swallowed", None
    if drift is not None:
        return "drift", None
    # A partial scan can find a fault but cannot rule one out.
    return ("not-measured" if trace.interrupted else "clean"), None


def _birth_verdict(judged: JudgedBirth) -> Verdict:
    if judged.cause in (FLUSH, CANCELLATION):
        return "forward-underflow"  # also where a backward op stumbles over it: the zero was made in forward
    if judged.in_forward:
        if judged.cause == RANGE:
            return "forward-overflow"
        return "backward-undefined" if only_the_derivative(judged) else "forward-undefined"
    if judged.cause == GENUINE:
        return "backward-undefined"
    return "no-workable-scale" if overflows_at_any_scale(judged.birth) else "backward-overflow"


def _first_as_configured(births: Sequence[JudgedBirth], loss_scale: float) -> JudgedBirth | None:
    """The first overflow of backward at the configured scale.

    Where some scale, if below 1, is finite, the gradient is too large from the loss on, and the op nearest to
    the loss says so, of a batch that overflows at scale 1 too. (A derivative that no scale makes finite is
    found at the low scale instead.)
    """
    overflows = [j for j in in_order(births) if j.standing == FAULT and not j.in_forward and j.cause == RANGE]
    batches = {j.birth.batch for j in overflows if overflows_even_at_1(j)}
    here = (j for j in overflows if j.birth.loss_scale == loss_scale)
    return next((j for j in here if j.birth.batch in batches or not batches), None)


def _bad_input(births: Sequence[JudgedBirth]) -> JudgedBirth | None:
    """The first batch, weight or buffer value that explains a bad loss; None where there is none."""
    spoiled_by = {
        parent
        for j in births
        if j.standing == FAULT and j.birth.site is not None and j.birth.site.op not in _SOFTMAX
        for parent in j.birth.parents
    }
    for j in in_order(births):
        birth = j.birth
        if j.standing != INPUT:
            continue
        if birth.value == "nan" and (j.reaches_loss or (birth.origin != "batch" and j.reaches_gradients)):
            return j
        # An infinity in a buffer, or one that a softmax met, is a mask and no bad value.
        if (
            birth.value == "inf"
            and birth.origin != "buffer"
            and (birth.reaches_loss or birth.id in spoiled_by)
        ):
            return j
    return None


def _spoils_gradients(judged: JudgedBirth) -> bool:
    """A NaN of the batch that the loss masks, but only after it went into the graph."""
    return judged.standing == INPUT and judged.birth.value == "nan" and bool(judged.reaches_gradients)


def _raised(trace: Trace) -> Pass | None:
    for candidate in trace.passes:
        if candidate.role == "candidate" and candidate.raised is not None:
            reference = find_pass(trace, "reference", candidate.batch)
            if reference is None or reference.raised is None:
                return candidate
    return None


def _nothing_measured(trace: Trace) -> bool:
    return not any(p.role == "candidate" and p.raised is None and p.sites for p in trace.passes)

"""Which births matter: each one's cause and standing, and the headline among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from ampdoctor.diagnose.cause import GENUINE, RANGE, cause_of
from ampdoctor.diagnose.inferred import inferred_birth
from ampdoctor.diagnose.outcome import find_pass, is_healthy, is_wrong
from ampdoctor.facts.site import Site
from ampdoctor.facts.trace import Birth, Pass, Trace
from ampdoctor.facts.words import Cause, Phase, Standing

FAULT: Final = "fault"
"""Reaches the loss or a gradient, and no other birth explains it."""
SILENT: Final = "silent"
"""Was absorbed without a trace of inf or NaN, but the loss or the gradients are wrong for it."""
CONSEQUENCE: Final = "consequence"
"""A NaN made of another birth's infinity, or a further output of the same op call."""
HARMLESS: Final = "harmless"
"""Low precision only, absorbed, and the outcome agrees with FP32."""
NATURAL: Final = "natural"
"""Declared by the user's code, or in FP32 too without harm: nothing to report."""
INPUT: Final = "input"
"""Came in with the batch, a weight or a buffer."""


@dataclass(frozen=True)
class JudgedBirth:
    """A birth with its cause, its standing and how far it came, its consequences counted in."""

    birth: Birth
    cause: Cause
    standing: Standing
    reaches_loss: bool
    reaches_gradients: tuple[str, ...]
    fp32_fails: bool = False
    """The FP32 pass of this batch ends with a loss or a gradient that is not finite, wherever that began."""
    outcome_agrees: bool = False
    """Loss and gradients were compared with FP32's, are finite and agree."""
    spoils_buffers: tuple[str, ...] = ()
    """Buffers that it leaves non-finite where the reference leaves them finite: the next step's start."""
    recomputed: bool = False
    """A forward op run again inside backward (activation checkpointing): no loss scale acts on it."""

    @property
    def is_sick(self) -> bool:
        """Explains a loss, a gradient or a buffer that is not finite."""
        arrives = self.reaches_loss or self.reaches_gradients or self.spoils_buffers
        return self.standing in (FAULT, INPUT) and bool(arrives)

    @property
    def in_forward(self) -> bool:
        """Of the forward's ops, be it on their second run."""
        return self.phase == "forward" or self.recomputed

    @property
    def phase(self) -> Phase:
        """Of the op that made it; ``forward`` for what came in."""
        return self.birth.site.phase if self.birth.site else "forward"


def judge_births(trace: Trace) -> tuple[JudgedBirth, ...]:
    """Every birth of the trace, judged, in the order of the trace.

    A sick pass none of whose births come through gets one inferred from its counts.
    """
    judged = _judge(trace)
    if any(j.is_sick for j in judged):
        return judged
    guess = inferred_birth(trace)
    if guess is None:
        return judged
    fails = _harmed(trace, guess.batch)
    cause = cause_of(guess, fails)
    return (
        *judged,
        JudgedBirth(guess, cause, FAULT, guess.reaches_loss, guess.reaches_gradients, fp32_fails=fails),
    )


def _judge(trace: Trace) -> tuple[JudgedBirth, ...]:
    batches = {b.batch for b in trace.births}
    harmed = {batch: _harmed(trace, batch) for batch in batches}
    agrees = {batch: _outcome_agrees(trace, batch) for batch in batches}
    births = {b.id: _as_in_fp32(b) if harmed[b.batch] else b for b in trace.births}
    reach = _reach(
        births, {(p.batch, b.name) for p in trace.passes for b in p.buffers if b.nonfinite_here_only}
    )
    stopped = {p.batch for p in trace.passes if p.role == "candidate" and stopped_by_itself(p)}
    recomputed = {r.site for p in trace.passes for r in p.sites if r.recomputed}
    judged = [
        JudgedBirth(
            b,
            cause_of(b, harmed[b.batch]),
            _standing(b, births, reach[b.id], harmed[b.batch], b.batch in stopped),
            reach[b.id].loss,
            reach[b.id].gradients,
            spoils_buffers=reach[b.id].buffers,
            fp32_fails=harmed[b.batch],
            outcome_agrees=agrees[b.batch],
            recomputed=b.site in recomputed,
        )
        for b in births.values()
    ]
    return tuple(_with_silent_fault(_with_last_resort(_one_per_call(judged), trace), trace))


def headline_of(judged: Sequence[JudgedBirth]) -> JudgedBirth | None:
    """The birth the verdict is about: forward before backward, a low loss scale before a higher one."""
    faults = [j for j in judged if j.standing in (FAULT, SILENT)]
    return min(faults, key=_order, default=None)


def only_the_derivative(judged: JudgedBirth) -> bool:
    """True for an infinity FP32 has too and the forward absorbs: only 0 * inf in backward goes wrong."""
    genuine_infinity = judged.cause == GENUINE and judged.birth.value == "inf"
    return genuine_infinity and judged.phase == "forward" and not judged.reaches_loss


def in_order(judged: Sequence[JudgedBirth]) -> list[JudgedBirth]:
    """The births as they happened, with the same precedence as the headline."""
    return sorted(judged, key=_order)


def _order(judged: JudgedBirth) -> tuple[bool, float, int, int]:
    birth = judged.birth
    backward = judged.phase == "backward"
    return backward, birth.loss_scale if backward else 0.0, birth.batch, birth.order


class Reach(NamedTuple):
    """Where a birth comes through, its consequences counted in."""

    loss: bool
    gradients: tuple[str, ...]
    buffers: tuple[str, ...]

    def __or__(self, other: Reach) -> Reach:
        return Reach(
            self.loss or other.loss,
            tuple(dict.fromkeys((*self.gradients, *other.gradients))),
            tuple(dict.fromkeys((*self.buffers, *other.buffers))),
        )


def _reach(births: Mapping[int, Birth], spoiled: Set[tuple[int, str]]) -> dict[int, Reach]:
    """{birth: reach}; what a birth's consequences reach, it reaches.

    ``spoiled``: (batch, buffer) not finite after the candidate, and finite after the reference.
    """
    reach = {
        b.id: Reach(
            b.reaches_loss,
            b.reaches_gradients,
            tuple(name for name in b.reaches_buffers if (b.batch, name) in spoiled),
        )
        for b in births.values()
    }
    # children come after their parents: walking backwards hands each reach on over any number of steps
    for birth in sorted(births.values(), key=lambda b: b.id, reverse=True):
        for parent in birth.parents:
            if parent in reach:
                reach[parent] |= reach[birth.id]
    return reach


def _standing(
    birth: Birth, births: Mapping[int, Birth], reach: Reach, reference_harmed: bool, stopped: bool
) -> Standing:
    if birth.origin == "declared":
        return NATURAL
    if birth.origin != "op":
        return INPUT
    if any(_explains(births[parent], birth) for parent in birth.parents if parent in births):
        return CONSEQUENCE
    if birth.reference == "same" and not reference_harmed:
        return NATURAL  # FP32 has it at the same elements and comes out healthy
    if reach.loss or reach.gradients or reach.buffers or stopped:
        return FAULT  # a model that raises on finding it lets it reach nothing else
    return NATURAL if birth.reference == "same" else HARMLESS


def _one_per_call(judged: list[JudgedBirth]) -> list[JudgedBirth]:
    """An op with several outputs is one fault: the output that comes furthest stands for the call."""
    best: dict[tuple[int, float, int, Site], JudgedBirth] = {}
    for j in judged:
        if j.birth.origin == "op" and j.birth.site is not None:
            call = (j.birth.batch, j.birth.loss_scale, j.birth.order, replace(j.birth.site, output=0))
            known = best.get(call)
            if known is None or _distance(j) > _distance(known):
                best[call] = j
    stands = {id(j) for j in best.values()}
    return [
        _restand(j, CONSEQUENCE)
        if j.birth.origin == "op" and j.standing in (FAULT, HARMLESS) and id(j) not in stands
        else j
        for j in judged
    ]


def _distance(judged: JudgedBirth) -> tuple[bool, bool, int]:
    return judged.standing == FAULT, judged.reaches_loss, len(judged.reaches_gradients)


def _explains(parent: Birth, child: Birth) -> bool:
    """True where the parent's infinity is the fault and the child's NaN only what became of it.

    An infinity that FP32 has too does not explain a NaN that FP32 has not: something else turned it bad.
    """
    return parent.origin == "op" and (parent.reference != "same" or child.reference == "same")


def stopped_by_itself(candidate: Pass) -> bool:
    """The model's own Python code raised, not an op: a check that found a bad value, mostly."""
    return candidate.raised is not None and not candidate.raised.op


def _harmed(trace: Trace, batch: int) -> bool:
    """True unless the FP32 pass of this batch is known to come out healthy."""
    reference = find_pass(trace, "reference", batch)
    return reference is None or not is_healthy(reference, trace.environment.forward_only)


def _with_last_resort(judged: list[JudgedBirth], trace: Trace) -> list[JudgedBirth]:
    """A sick candidate needs an explanation: births that FP32 shares are faults if there are no others."""
    if any(j.is_sick for j in judged):
        return judged
    forward_only = trace.environment.forward_only
    sick = {p.batch for p in trace.passes if p.role == "candidate" and not is_healthy(p, forward_only)}
    return [
        _restand(j, FAULT)
        if j.birth.batch in sick
        and j.birth.origin == "op"
        and j.standing == NATURAL
        and (j.reaches_loss or j.reaches_gradients)
        else j
        for j in judged
    ]


def _with_silent_fault(judged: list[JudgedBirth], trace: Trace) -> list[JudgedBirth]:
    """The first absorbed forward birth becomes the fault where the outcome is wrong and nothing else explains
    it. An overflow of backward at this loss scale explains no wrong loss: both are there."""
    if any(j.is_sick and (j.in_forward or j.cause != RANGE) for j in judged):
        return judged
    if trace.deterministic is False:
        return judged  # two passes differ anyway: nothing shows that the infinity is to blame
    suspects = [
        j
        for j in judged
        if j.standing == HARMLESS and j.phase == "forward" and j.cause != GENUINE
        if is_wrong(trace, j.birth.batch)
    ]
    first = min(suspects, key=_order, default=None)
    return [_restand(j, SILENT) if j is first else j for j in judged]


def _as_in_fp32(birth: Birth) -> Birth:
    """The birth as told by those of its elements that FP32 has too, where there are such.

    FP32 fails by them, so what other elements of the same call do in low precision only is no cure's aim.
    """
    if not birth.shared or birth.reference == "same":
        return birth
    return replace(
        birth,
        reference="same",
        index=birth.shared_index,
        exact_value=None,
        reference_value=None,
        argument=None,
    )


def _outcome_agrees(trace: Trace, batch: int) -> bool:
    candidate = find_pass(trace, "candidate", batch, trace.loss_scale)
    if candidate is None or not is_healthy(candidate, trace.environment.forward_only):
        return False
    return not trace.environment.forward_only and not is_wrong(trace, batch)


def _restand(judged: JudgedBirth, standing: Standing) -> JudgedBirth:
    return replace(judged, standing=standing)

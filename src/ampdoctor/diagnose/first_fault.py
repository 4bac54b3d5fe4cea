"""The first fault: the birth, input or exception the verdict rests on, with all that is known of it."""

from __future__ import annotations

import math

from ampdoctor.diagnose.cause import FLUSH, GENUINE, RANGE
from ampdoctor.diagnose.constants import root_of
from ampdoctor.diagnose.report import FirstFault
from ampdoctor.diagnose.standing import INPUT, JudgedBirth
from ampdoctor.diagnose.updates import eps_breaks, module_of, update_damage
from ampdoctor.diagnose.verdict import Reading
from ampdoctor.facts.trace import BadTensor, Birth, Pass, Raised, Trace


def first_fault(reading: Reading) -> FirstFault | None:
    """What the report calls the first fault; None where no single place is to blame."""
    if reading.basis is not None:
        if reading.basis.standing == INPUT:
            return _from_input(reading.basis, reading)
        return _from_birth(reading.basis, reading)
    if reading.raised is not None and reading.raised.raised is not None:
        return _from_raised(reading.raised, reading.raised.raised, reading)
    if reading.verdict == "update-swallowed":
        return _from_step(reading)
    return None


def tensor_name(birth: Birth) -> str:
    """``batch["ctx"]``, ``parameter fc.weight``, ``buffer mask``."""
    return f"batch{birth.name}" if birth.origin == "batch" else f"{birth.origin} {birth.name}"


def bad_tensor_of(birth: Birth, trace: Trace) -> BadTensor | None:
    """The record made of this tensor before anything ran."""
    for bad in trace.bad_tensors:
        if (bad.kind, bad.name) == (birth.origin, birth.name) and bad.batch in (None, birth.batch):
            return bad
    return None


def _from_birth(judged: JudgedBirth, reading: Reading) -> FirstFault:
    birth, trace = judged.birth, reading.trace
    module = birth.site.module if birth.site else ""
    return FirstFault(
        phase=judged.phase,
        value=birth.value,
        cause=judged.cause,
        module=module,
        module_type=_module_type(trace, module),
        op=birth.site.op if birth.site else "",
        source=birth.source,
        backward_source=birth.backward_source,
        dtype=birth.dtype,
        shape=birth.shape,
        index=birth.index,
        count=birth.count,
        batch=birth.batch,
        samples=birth.samples,
        exact_value=birth.exact_value,
        reference_value=birth.reference_value,
        fp32_also_fails=birth.reference == "same" or (judged.cause == GENUINE and judged.fp32_fails),
        loss_scale=birth.loss_scale,
        inputs=birth.operands,
        implicit_cast=birth.implicit_cast,
        constant=birth.constant,
        forward_op=birth.forward_op,
        root=root_of(birth, reading.fmt) if judged.cause == FLUSH else None,
        path=birth.path,
        reaches_loss=judged.reaches_loss,
        reaches_gradients=judged.reaches_gradients,
        spoils_buffers=judged.spoils_buffers,
        absorbed_at=birth.absorbed_at,
    )


def _from_input(judged: JudgedBirth, reading: Reading) -> FirstFault:
    """The tensor itself; where only the gradients suffer, the first backward op that takes it in."""
    birth = judged.birth
    bad = bad_tensor_of(birth, reading.trace)
    backward = next((s for s in birth.path if s.phase == "backward"), None)
    step = backward if reading.verdict == "backward-undefined" else None
    module = step.module if step else ""
    return FirstFault(
        phase=step.phase if step else "forward",
        value=birth.value,
        cause=judged.cause if step else None,
        module=module,
        module_type=_module_type(reading.trace, module),
        op=step.op if step else "",
        source=step.source if step else birth.source,
        dtype=birth.dtype,
        shape=birth.shape,
        index=birth.index,
        count=(bad.nan or bad.inf) if bad else birth.count,
        batch=birth.batch,
        samples=birth.samples,
        fp32_also_fails=True,
        loss_scale=birth.loss_scale,
        path=birth.path,
        reaches_loss=judged.reaches_loss,
        reaches_gradients=judged.reaches_gradients,
        absorbed_at=birth.absorbed_at,
        tensor=tensor_name(birth),
    )


def _from_raised(candidate: Pass, raised: Raised, reading: Reading) -> FirstFault:
    overflows = reading.verdict == "forward-overflow"
    return FirstFault(
        phase=raised.phase,
        value="inf" if overflows else None,
        cause="range" if overflows else None,
        module=raised.module,
        module_type=_module_type(reading.trace, raised.module),
        op=raised.op,
        source=raised.source,
        dtype=reading.trace.environment.dtype,
        shape=(),
        index=None,
        count=None,
        batch=candidate.batch,
        exact_value=raised.constant,
        loss_scale=candidate.loss_scale,
        constant=raised.constant,
    )


def _from_step(reading: Reading) -> FirstFault | None:
    """The op of the optimizer's that destroys weights; None where they only stay as they are."""
    step, damage = reading.trace.optimizer_step, update_damage(reading.trace)
    if step is None or damage is None or not damage.broken or step.birth is None:
        return None
    birth, module = step.birth, module_of(damage.broken)
    in_range = birth.exact_value is not None and math.isfinite(birth.exact_value)
    return FirstFault(
        phase="optimizer",
        value=birth.value,
        cause=FLUSH if eps_breaks(damage.broken) else RANGE if in_range else None,
        module=module,
        module_type=_module_type(reading.trace, module) if module else "",
        op=birth.site.op if birth.site else "",
        source=birth.line or step.source,
        dtype=birth.dtype,
        shape=birth.shape,
        index=birth.index,
        count=birth.count,
        batch=birth.batch,
        exact_value=birth.exact_value,
        loss_scale=step.loss_scale,
        inputs=birth.operands,
        implicit_cast=birth.implicit_cast,
        constant=birth.constant,
    )


def _module_type(trace: Trace, path: str) -> str:
    return next((m.type for m in trace.modules if m.path == path), "")

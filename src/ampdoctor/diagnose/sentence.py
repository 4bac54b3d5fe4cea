"""The verdict in one sentence a tired person understands."""

from __future__ import annotations

from ampdoctor.diagnose.cause import CANCELLATION, is_of_a_negative
from ampdoctor.diagnose.first_fault import tensor_name
from ampdoctor.diagnose.outcome import share_lost
from ampdoctor.diagnose.report import FirstFault
from ampdoctor.diagnose.standing import SILENT
from ampdoctor.diagnose.updates import update_damage
from ampdoctor.diagnose.verdict import Reading
from ampdoctor.diagnose.wording import (
    count_words,
    first_line,
    format_name,
    number,
    percent,
    place,
    sample_words,
    scale,
    short_op,
)
from ampdoctor.scales.gradient_harm import lost_fraction

_WORTH_A_WORD = 0.0005
"""A share of the gradient below this is nothing to a reader: ``<0.1 %``."""


def sentence_of(reading: Reading, fault: FirstFault | None) -> str:
    """The verdict, where it is and what it means."""
    name = format_name(reading.fmt.name)
    where = _where(fault)
    match reading.verdict:
        case "bad-input":
            return _bad_input(reading)
        case "raises":
            raised = reading.raised.raised if reading.raised else None
            what = "an exception"
            if raised is not None:
                kind = "" if raised.emulated_refusal else f"{raised.type}: "
                what = kind + first_line(raised.message)
            return f"RAISES in {name} only. {where}: {what}"
        case "forward-overflow" if reading.basis is None and fault is not None:
            return f"OVERFLOW in forward. {where} uses {number(fault.constant)}, which {name} cannot hold."
        case "forward-overflow" if reading.basis is not None and reading.basis.standing == SILENT:
            return f"OVERFLOW in forward, silently. {where} leaves the {name} range; the loss is wrong."
        case "forward-overflow":
            again = "forward, recomputed in backward" if fault and fault.phase == "backward" else "forward"
            held = format_name(fault.dtype) if fault else name
            return f"OVERFLOW in {again}. {where} leaves the {held} range; {_fp32(reading)}."
        case "forward-underflow" if reading.basis is not None and reading.basis.cause == CANCELLATION:
            return (
                f"CANCELLED. {_op_in(fault)} is given {_argument(reading)}, which {name}'s rounding made of "
                f"a difference; {_fp32(reading)}."
            )
        case "forward-underflow":
            return f"ROUNDED TO ZERO. {_op_in(fault)} needs a value that {name} made zero; {_fp32(reading)}."
        case "forward-undefined" if reading.basis is not None and is_of_a_negative(reading.basis.birth):
            return (
                f"UNDEFINED in forward. {_op_in(fault)} is given {_argument(reading)}; FP32 fails too: "
                "no matter of precision."
            )
        case "forward-undefined":
            return (
                f"UNDEFINED in forward. {where} makes {_value(fault)}, in FP32 too: no matter of precision."
            )
        case "backward-undefined":
            return f"UNDEFINED in backward. {where} makes gradients NaN, in FP32 too: no matter of precision."
        case "no-workable-scale":
            return f"NO LOSS SCALE WORKS. {_no_scale(reading, fault, name)}"
        case "backward-overflow":
            at = scale(fault.loss_scale) if fault else ""
            return f"LOSS SCALE TOO HIGH. At {at} the backward of {where} leaves the {name} range."
        case "gradient-underflow":
            return _underflow(reading)
        case "update-swallowed":
            return _update(reading)
        case "clean":
            return _clean(reading)
        case _:
            return f"NOT MEASURED. {_why_not(reading)}"


def _fp32(reading: Reading) -> str:
    """What the FP32 pass of that batch came to: nothing is fine that was not seen to end well."""
    basis = reading.basis
    if basis is None or not basis.fp32_fails:
        return "FP32 is fine"
    if basis.birth.reference == "same":
        return "the model itself casts to it, so the FP32 run has it as well"
    return "the FP32 run is not finite either, from another place"


def _argument(reading: Reading) -> str:
    argument = reading.basis.birth.argument if reading.basis else None
    return number(argument) if argument is not None else "a negative number"


def _where(fault: FirstFault | None) -> str:
    return place(fault.module) if fault else "some op"


def _op_in(fault: FirstFault | None) -> str:
    if fault is None:
        return "An op"
    op = short_op(fault.op)
    if fault.phase == "backward":
        op = f"The backward of {short_op(fault.forward_op) or op}"
    return f"{op} in {place(fault.module)}"


def _value(fault: FirstFault | None) -> str:
    return "NaN" if fault is not None and fault.value == "nan" else "an infinity"


def _bad_input(reading: Reading) -> str:
    if reading.basis is None:
        return "BAD INPUT."
    birth = reading.basis.birth
    samples = sample_words(birth.samples)
    value = "NaN" if birth.value == "nan" else "inf"
    where = f" ({samples})" if samples else ""
    return f"BAD INPUT. {tensor_name(birth)} holds {value} before anything runs{where}."


def _no_scale(reading: Reading, fault: FirstFault | None, name: str) -> str:
    scales = reading.scales
    if scales is None or scales.ceiling is None or scales.high_limit is None or scales.low_limit is None:
        return f"The backward of {_where(fault)} leaves the {name} range even at scale 1."
    high, low = place(scales.high_limit.site.module), place(scales.low_limit.site.module)
    return (
        f"The backward of {high} overflows above {scale(2.0**scales.ceiling)}, where that of {low} is "
        "still rounded to zero."
    )


def _underflow(reading: Reading) -> str:
    damage = reading.damage
    start = f"GRADIENTS LOST at loss scale {scale(reading.trace.environment.loss_scale)}."
    if damage is None or not damage.damaged:
        share = percent(damage.lost_fraction if damage else None)
        return f"{start} {share} of all gradient elements are rounded to zero."
    worst = damage.damaged[0]
    return (
        f"{start} {count_words(len(damage.damaged), 'parameter')} get a gradient that rounding zeroed; worst "
        f"{worst.name} ({percent(lost_fraction(worst))})."
    )


def _update(reading: Reading) -> str:
    step, damage = reading.trace.optimizer_step, update_damage(reading.trace)
    if step is None or damage is None:
        return "UPDATES SWALLOWED."
    formats = " and ".join(dict.fromkeys(format_name(u.dtype) for u in step.updates))
    if damage.broken:
        elements = sum(u.nan + u.inf for u in damage.broken)
        return (
            f"WEIGHTS DESTROYED by the optimizer. The first step of {step.optimizer} leaves "
            f"{count_words(elements, 'weight element')} non-finite in {formats}; FP32 is fine."
        )
    return (
        f"UPDATES SWALLOWED. {percent(damage.share)} of the weight elements that {step.optimizer} moves in "
        f"FP32 stay as they are in {formats}."
    )


def _clean(reading: Reading) -> str:
    environment = reading.trace.environment
    name = format_name(environment.dtype)
    if environment.forward_only:
        return f"CLEAN. Nothing in the {name} forward overflows or is undefined."
    if not any(p.backward_ran for p in reading.trace.passes if p.role == "candidate"):
        return f"CLEAN, as far as it goes: the {name} forward is sound, and there was no backward to look at."
    start = f"CLEAN. Nothing overflows at loss scale {scale(environment.loss_scale)}, and"
    lost = max((share_lost(p) or 0.0 for p in reading.trace.passes if p.role == "candidate"), default=0.0)
    if lost < _WORTH_A_WORD:
        return f"{start} no gradient is lost."
    return f"{start} the {percent(lost)} of the gradient that is lost harms no parameter."


def _why_not(reading: Reading) -> str:
    trace = reading.trace
    if trace.interrupted:
        return "The scan was interrupted before it found or ruled out a fault."
    raised = next((p.raised for p in trace.passes if p.raised is not None), None)
    if raised is not None:
        return f"The model raises in FP32 as well: {raised.type}: {first_line(raised.message)}"
    return "No op that makes floating-point numbers ran."

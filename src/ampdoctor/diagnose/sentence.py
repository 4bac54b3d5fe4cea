"""The verdict in one sentence a tired person understands."""

from __future__ import annotations

from ampdoctor.diagnose.cause import CANCELLATION
from ampdoctor.diagnose.domain import leaves_domain
from ampdoctor.diagnose.drift import DriftReading, outcome_words
from ampdoctor.diagnose.first_fault import tensor_name
from ampdoctor.diagnose.headline import Headline
from ampdoctor.diagnose.outcome import find_pass, share_lost, what_is_lost, what_is_wrong
from ampdoctor.diagnose.report import FirstFault
from ampdoctor.diagnose.standing import FAULT, HARMLESS, SILENT, in_order
from ampdoctor.diagnose.updates import destroying_step, update_damage
from ampdoctor.diagnose.verdict import Reading, overflows_even_at_1
from ampdoctor.diagnose.wording import (
    count_words,
    first_line,
    format_name,
    listing,
    number,
    percent,
    place,
    sample_words,
    scale,
    short_op,
)
from ampdoctor.facts.trace import Trace
from ampdoctor.scales.gradient_harm import vanishing
from ampdoctor.scales.powers_of_two import LOWEST, ROOT_SCALE
from ampdoctor.scales.search_allowed import all_zero

_WORTH_A_WORD = 0.0005
"""A share of the gradient below this is nothing to a reader: ``<0.1 %``."""


def sentence_of(reading: Reading, fault: FirstFault | None) -> Headline:
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
            return Headline(f"RAISES in {name} only.", f"{where}: {what}")
        case "forward-overflow" if reading.basis is None and fault is not None:
            return Headline(
                "OVERFLOW in forward.", f"{where} uses {number(fault.constant)}, which {name} cannot hold."
            )
        case "forward-overflow" if reading.basis is not None and reading.basis.standing == SILENT:
            wrong = what_is_wrong(reading.trace, reading.basis.birth.batch)
            return Headline("OVERFLOW in forward, silently.", f"{where} leaves the {name} range; {wrong}.")
        case "forward-overflow":
            again = "forward, recomputed in backward" if fault and fault.phase == "backward" else "forward"
            held = format_name(fault.dtype) if fault else name
            return Headline(f"OVERFLOW in {again}.", f"{where} leaves the {held} range; {_fp32(reading)}.")
        case "forward-underflow" if reading.basis is not None and reading.basis.cause == CANCELLATION:
            return Headline(
                "CANCELLED.",
                f"{_op_in(fault)} is given {_argument(reading)}, which {name}'s rounding made of "
                f"a difference; {_fp32(reading)}.",
            )
        case "forward-underflow":
            return Headline(
                "ROUNDED TO ZERO.", f"{_op_in(fault)} needs a value that {name} made zero; {_fp32(reading)}."
            )
        case "forward-undefined" if _fp32_fails_by_another_sign(reading):
            return Headline(
                "UNDEFINED in forward.",
                f"{_op_in(fault)} is given {_argument(reading)}; FP32 fails too: no matter of precision.",
            )
        case "forward-undefined":
            return Headline("UNDEFINED in forward.", f"{where} makes {_value(fault)}{_in_fp32_too(reading)}.")
        case "backward-undefined":
            return Headline("UNDEFINED in backward.", f"{where} makes gradients NaN{_in_fp32_too(reading)}.")
        case "no-workable-scale":
            return Headline("NO LOSS SCALE WORKS.", _no_scale(reading, fault, name))
        case "backward-overflow":
            at = scale(fault.loss_scale) if fault else ""
            return Headline(
                "LOSS SCALE TOO HIGH.", f"At {at} the backward of {where} leaves the {name} range."
            )
        case "gradient-underflow":
            return _underflow(reading)
        case "drift":
            return _drift(reading)
        case "update-swallowed":
            return _update(reading)
        case "clean":
            return _clean(reading)
        case _:
            return Headline("NOT MEASURED.", _why_not(reading))


def _fp32(reading: Reading) -> str:
    """What the FP32 pass of that batch came to: nothing is fine that was not seen to end well."""
    basis = reading.basis
    reference = find_pass(reading.trace, "reference", basis.birth.batch) if basis else None
    if basis is not None and reference is None:
        return "there was no FP32 run to compare with"
    if reference is not None and reference.raised is not None:
        return "the FP32 run raised"
    if basis is None or not basis.fp32_fails:
        return "FP32 is fine"
    if basis.birth.reference == "same":
        return "the model itself casts to it, so the FP32 run has it as well"
    return "the FP32 run is not finite either, from another place"


def _in_fp32_too(reading: Reading) -> str:
    """``, in FP32 too: no matter of precision``, where FP32 was seen to have it."""
    birth = reading.basis.birth if reading.basis else None
    if birth is None or birth.origin != "op" or birth.reference == "same":
        return ", in FP32 too: no matter of precision"
    return " on these inputs" if birth.rerun == "not-run" else " on these inputs, in float64 too"


def _fp32_fails_by_another_sign(reading: Reading) -> bool:
    birth = reading.basis.birth if reading.basis else None
    return birth is not None and leaves_domain(birth) and birth.reference != "absent"


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


def _bad_input(reading: Reading) -> Headline:
    if reading.basis is None:
        return Headline("BAD INPUT.")
    birth = reading.basis.birth
    samples = sample_words(birth.samples)
    value = "NaN" if birth.value == "nan" else "inf"
    where = f" ({samples})" if samples else ""
    return Headline("BAD INPUT.", f"{tensor_name(birth)} holds {value} before anything runs{where}.")


def _no_scale(reading: Reading, fault: FirstFault | None, name: str) -> str:
    scales, where = reading.scales, _where(fault)
    ceiling = scales.ceiling if scales is not None else None
    high, low = (scales.high_limit, scales.low_limit) if scales is not None else (None, None)
    if ceiling is not None and ceiling >= LOWEST and high is not None and low is not None:
        return (
            f"The backward of {place(high.site.module)} overflows above {scale(2.0**ceiling)}, where that of "
            f"{place(low.site.module)} still loses gradient that matters."
        )
    if fault is None or fault.loss_scale <= ROOT_SCALE:
        return f"The backward of {where} leaves the {name} range even at scale 1."
    at = f"The backward of {where} leaves the {name} range at {scale(fault.loss_scale)}"
    root = next(
        (j.birth for j in in_order(reading.births) if j.standing == FAULT and overflows_even_at_1(j)), None
    )
    if root is None or root.site is None:
        return f"{at}."
    if place(root.site.module) == where:
        return f"The backward of {where} leaves the {name} range even at scale 1."
    return f"{at}, and that of {place(root.site.module)} even at scale 1."


def _underflow(reading: Reading) -> Headline:
    damage = reading.damage
    head = f"GRADIENTS LOST at loss scale {scale(reading.trace.loss_scale)}."
    if damage is None or not damage.damaged:
        share = percent(damage.lost_fraction if damage else None)
        return Headline(head, f"{share} of all gradient elements are rounded to zero.")
    worst, number = damage.damaged[0], len(damage.damaged)
    return Headline(
        head,
        f"{count_words(number, 'parameter')} {'gets' if number == 1 else 'get'} a gradient that rounding "
        f"zeroed; worst {worst.name} ({what_is_lost(worst)}).",
    )


def _update(reading: Reading) -> Headline:
    step, damage = reading.trace.optimizer_step, update_damage(reading.trace)
    if step is None or damage is None:
        return Headline("UPDATES SWALLOWED.")
    formats = " and ".join(dict.fromkeys(format_name(u.dtype) for u in step.updates))
    if damage.broken:
        elements = sum(u.nan + u.inf for u in damage.broken)
        cast = format_name(step.casts_to) if step.casts_to else ""
        where = f"by a cast to {cast}; without it, the step" if cast else f"in {formats}; FP32"
        return Headline(
            "WEIGHTS DESTROYED by the optimizer.",
            f"{destroying_step(step)} of {step.optimizer} leaves "
            f"{count_words(elements, 'weight element')} non-finite {where} is fine.",
        )
    if step.casts_to and damage.is_swallowed:
        return Headline(
            "UPDATES SWALLOWED by the optimizer.",
            f"{step.optimizer} casts to {format_name(step.casts_to)}: {percent(damage.share)} of the weight "
            "elements that it moves without the cast stay as they are.",
        )
    if damage.is_swallowed:
        return Headline(
            "UPDATES SWALLOWED.",
            f"{percent(damage.share)} of the weight elements that {step.optimizer} moves in "
            f"FP32 stay as they are in {formats}.",
        )
    if damage.never:
        names = listing([u.name for u in damage.never])
        does, it = ("does", "it does") if len(damage.never) == 1 else ("do", "they do")
        steps = f"{count_words(len(step.by_step), 'step')} of {step.optimizer}"
        return Headline(
            "UPDATES SWALLOWED.", f"{names} {does} not move in {steps} in {formats}; in FP32 {it}."
        )
    decay = all(part.proportional for _, part in damage.lost_parts)
    return Headline(
        "UPDATES SWALLOWED in part.",
        f"The {'weight decay' if decay else 'step'} of {step.optimizer} "
        f"{'moves no weight' if decay else 'loses a part'} in {formats}; in FP32 it does.",
    )


def _drift(reading: Reading) -> Headline:
    drift = reading.drift
    if drift is None:
        return Headline("FINITE AND WRONG.")
    where = f"{_beginning(drift)} " if drift.begins is not None else ""
    return Headline("FINITE AND WRONG.", f"{where}{outcome_words(drift)}")


def _beginning(drift: DriftReading) -> str:
    at = drift.begins
    if at is None:
        return ""
    if at.kind == "stale-cast":
        return f"{place(at.site.module)} is served an outdated cast of {at.weight}."
    return f"From {short_op(at.site.op)} in {place(at.site.module)} on."


def _clean(reading: Reading) -> Headline:
    environment = reading.trace.environment
    name = format_name(environment.dtype)
    absorbed = any(j.standing == HARMLESS for j in reading.births)
    if environment.forward_only:
        what = "What overflows or is undefined in" if absorbed else "Nothing in"
        does = "is absorbed before the end" if absorbed else "overflows or is undefined"
        return Headline("CLEAN.", f"{what} the {name} forward {does}.")
    if not any(p.backward_ran for p in reading.trace.passes if p.role == "candidate"):
        return Headline(
            f"CLEAN, as far as it goes: the {name} forward is sound, and there was no backward to look at."
        )
    if not any(p.parameters for p in reading.trace.passes if p.role == "candidate"):
        return Headline(
            "CLEAN, as far as it goes:", f"the {name} forward is sound, and no parameter gets a gradient."
        )
    nothing = "What overflows or is undefined is absorbed" if absorbed else "Nothing overflows"
    start = f"{nothing} {_at_scale(reading.trace)}, and"
    if all_zero([p for p in reading.trace.passes if p.role == "candidate"]):
        return Headline("CLEAN, as far as it goes:", f"every gradient is zero, in {name} and in FP32.")
    if any(p.role == "reference" and p.raised is not None for p in reading.trace.passes):
        return Headline(
            "CLEAN, as far as it goes:",
            f"{nothing[0].lower()}{nothing[1:]} {_at_scale(reading.trace)}; FP32 "
            "raises, so what gradients lose was not compared.",
        )
    lost = max((share_lost(p) or 0.0 for p in reading.trace.passes if p.role == "candidate"), default=0.0)
    if lost < _WORTH_A_WORD:
        which = " that FP32 would train with" if _vanishes(reading.trace) else ""
        return Headline("CLEAN.", f"{start} no gradient is lost{which}.")
    return Headline("CLEAN.", f"{start} the {percent(lost)} of the gradient that is lost harms no parameter.")


def _vanishes(trace: Trace) -> bool:
    """Gradients are lost that are too small for FP32 too."""
    return any(p.lost for run in trace.passes if run.role == "candidate" for p in vanishing(run.parameters))


def _at_scale(trace: Trace) -> str:
    if trace.environment.scaler == "none":
        return "without a loss scale"
    at = f"at loss scale {scale(trace.loss_scale)}"
    if trace.settling is None or not trace.settling.skips:
        return at
    return f"{at}, where GradScaler settles after {count_words(trace.settling.skips, 'skipped step')}"


def _why_not(reading: Reading) -> str:
    trace = reading.trace
    if trace.interrupted:
        return "The scan was interrupted before it found or ruled out a fault."
    raised = next((p.raised for p in trace.passes if p.raised is not None), None)
    if raised is not None:
        return f"The model raises in FP32 as well: {raised.type}: {first_line(raised.message)}"
    return "No op that makes floating-point numbers ran."

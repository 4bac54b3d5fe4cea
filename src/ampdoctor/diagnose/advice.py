"""What to do about a birth, in words that can be followed to the letter: used by several rules."""

from __future__ import annotations

from ampdoctor.diagnose.cause import stays_half
from ampdoctor.diagnose.constants import first_zero, vanished_eps
from ampdoctor.diagnose.outcome import find_pass
from ampdoctor.diagnose.standing import JudgedBirth
from ampdoctor.diagnose.verdict import Reading
from ampdoctor.diagnose.wording import format_name, number, short_op, source_place
from ampdoctor.facts.floats import FLOAT_FORMATS
from ampdoctor.facts.trace import Birth
from ampdoctor.facts.words import AUTOCASTS, CASTS_WEIGHTS

_CAST = "aten::_to_copy"


def keep_in_fp32(reading: Reading, judged: JudgedBirth) -> str:
    """How to run the op of this birth in FP32, for the mode the scan ran in; and how much further FP32 has to
    go, where what the line gives does not fit the format either."""
    birth = judged.birth
    module = birth.site.module if birth.site else ""
    half = format_name(birth.dtype)
    if birth.name:
        return f"keep {birth.name} in FP32 and cast what is computed from it, or hold it scaled down"
    if stays_half(birth):
        autocasts = reading.trace.environment.mode in AUTOCASTS
        off = f" ({autocast_off(reading)} around both)" if autocasts else ""
        return (
            f"a cast in the model makes this line {half} in an FP32 run as well: replace it by .float(), and "
            f"keep what takes the result in FP32 too{off}"
        )
    result = result_past_the_end(reading, birth)
    if reading.trace.environment.mode in CASTS_WEIGHTS:
        if result is not None:
            return (
                f"what this line gives, {number(result)}, does not fit {half} either: keep it in FP32 "
                "(x.float()) until a norm or a division makes it fit, or scale it down before"
            )
        return f"compute this line{' of ' + module if module else ''} in FP32 (x.float(), then back to half)"
    advice = (
        f"keep {module or 'this line'} in FP32 ({autocast_off(reading)} around it, .float() on its inputs)"
    )
    if result is not None:
        advice += (
            f", and what takes its result too: {number(result)} does not fit {half}; or scale it down before"
        )
    return advice


def eps_remedy(reading: Reading, birth: Birth) -> str:
    """What to do about an eps that the format rounds to zero."""
    guard, first = vanished_eps(birth, reading.fmt), first_zero(birth)
    name, fmt = reading.fmt_name, FLOAT_FORMATS.get(birth.dtype)
    line = (source_place(guard.source) if guard else "") or "this line"
    larger = f"use one that {name} can hold (above {number(reading.fmt.min_subnormal)}, better "
    larger += f"{number(reading.fmt.min_normal)})"
    start = f"The eps of {line} is 0 in {name}: "
    exact = birth.reference_value
    if fmt is not None and exact is not None and abs(exact) >= fmt.overflow_at:
        return (
            f"{start}{larger}, or clamp what it is added to (a count at 1). Adding it in FP32 is no cure: "
            f"the {number(exact)} that FP32 has here does not fit {format_name(birth.dtype)}."
        )
    if guard is None or first is None or first.site == guard.site:
        return f"{start}add it in FP32, or {larger}."
    root = source_place(first.source) or short_op(first.site.op)
    stable = next((_STABLE[z.site.op] for z in birth.zero_chain if z.site.op in _STABLE), "")
    is_log = birth.site is not None and birth.site.op in ("aten::log", "aten::log2", "aten::log10")
    form = f"use {stable}; or " if stable and is_log else ""
    return f"{start}{form}compute what comes from {root} on in FP32, eps included; or {larger}."


_STABLE = {
    "aten::sigmoid": "logsigmoid or binary_cross_entropy_with_logits on the logits",
    "aten::_softmax": "log_softmax",
}


def autocast_off(reading: Reading) -> str:
    """``torch.autocast("cuda", enabled=False)``, for the device that the scan speaks of."""
    environment = reading.trace.environment
    device = environment.emulates or environment.device.partition(":")[0] or "cuda"
    return f'torch.autocast("{device}", enabled=False)'


def result_past_the_end(reading: Reading, birth: Birth) -> float | None:
    """The largest magnitude that the birth's line gives in FP32, where the birth's format has no such number;
    None where it fits, and where it is not known."""
    fmt = FLOAT_FORMATS.get(birth.dtype)
    if fmt is None or birth.site is None or birth.site.phase != "forward":
        return None
    size = _own_size(birth) if birth.site.op == _CAST and not birth.implicit_cast else None
    if size is None:
        size = _result_of_line(reading, birth)
    return size if size is not None and size >= fmt.overflow_at else None


def _own_size(birth: Birth) -> float | None:
    """The number that the user's own cast should have kept."""
    return None if birth.exact_value is None else abs(birth.exact_value)


def _result_of_line(reading: Reading, birth: Birth) -> float | None:
    """The largest magnitude of the last tensor that the line of this birth makes in the FP32 pass."""
    reference = find_pass(reading.trace, "reference", birth.batch)
    if reference is None or birth.source is None:
        return None
    records = sorted((r for r in reference.sites if r.site.phase == "forward"), key=lambda r: r.order)
    start = next((i for i, r in enumerate(records) if r.site == birth.site), None)
    if start is None:
        on_line = [r for r in records if r.source == birth.source]
        return on_line[-1].stats.absmax if on_line else None
    last = records[start]
    for record in records[start:]:
        if record.source != birth.source:
            break
        last = record
    return last.stats.absmax


def has_select(reading: Reading, birth: Birth) -> bool:
    """True where a torch.where or a masked_fill runs in the module of this birth, or on its line."""
    selects = ("aten::where", "aten::masked_fill", "aten::masked_fill_")
    module = birth.site.module if birth.site else ""
    return any(
        r.site.op in selects and (r.site.module == module or r.source == birth.source)
        for p in reading.trace.passes
        for r in p.sites
        if r.site.phase == "forward"
    )

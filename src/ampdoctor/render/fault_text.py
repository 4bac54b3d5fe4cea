"""The first fault in words: where it is born, what it is, what went in, what it reaches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.text import Text

from ampdoctor.diagnose.report import FirstFault
from ampdoctor.diagnose.wording import (
    count_words,
    element,
    format_name,
    listing,
    number,
    place,
    sample_words,
    scale,
    short_op,
)
from ampdoctor.facts.floats import FLOAT_FORMATS
from ampdoctor.facts.site import Source
from ampdoctor.facts.trace import OperandFact, Step
from ampdoctor.render.options import Options
from ampdoctor.render.words import source_path, words

_MOST_INPUTS = 4
_PATH_STEPS = (4, 2)
"""Steps shown from the start and the end of a long path."""

Row = tuple[str, tuple[Text, ...]]
"""A label, and what it says, in parts that stand apart."""


def fault_rows(fault: FirstFault, options: Options) -> list[Row]:
    """Labelled lines about the first fault; what is not known is left out."""
    return [
        *_place(fault, options),
        *_labelled("Value", value_lines(fault)),
        *_inputs(fault),
        *_root(fault, options),
        *_reaches(fault),
    ]


def _place(fault: FirstFault, options: Options) -> Iterator[Row]:
    label = "Came in" if fault.tensor else "Raised at" if fault.value is None else "Born at"
    if fault.tensor:
        yield label, (words((fault.tensor, "bold")),)
        label = "Meets" if fault.op else ""
    if fault.op or not fault.tensor:
        kind = f" ({fault.module_type})" if fault.module_type else ""
        of = f" of {short_op(fault.forward_op)}" if fault.forward_op else ""
        op = (words(fault.op),) if fault.op else ()
        yield label, (words((place(fault.module), "bold"), kind), *op, words(f"{fault.phase}{of}"))
    if fault.source is not None:
        yield "", _line(fault.source, options)
    if fault.backward_source is not None:
        yield "In backward", _line(fault.backward_source, options)
    if fault.implicit_cast:
        yield "", (words(f"a cast to {format_name(fault.dtype)} that autocast puts in"),)


def _line(source: Source, options: Options) -> tuple[Text, Text]:
    return words((source_path(source, options), "cyan")), words(source.text)


def _labelled(label: str, lines: Iterator[str]) -> Iterator[Row]:
    """The lines as rows, the label on the first."""
    for line in lines:
        yield label, (words(line),)
        label = ""


def value_lines(fault: FirstFault) -> Iterator[str]:
    """What it is and should have been, then where in the tensor; nothing for an exception."""
    if fault.value is None or (fault.constant is not None and fault.index is None):
        return  # an exception: there is no value
    fmt = FLOAT_FORMATS.get(fault.dtype)
    name = format_name(fault.dtype)
    what = "NaN" if fault.value == "nan" else "inf"
    if fault.phase == "backward" and not fault.tensor:
        what += f" at loss scale {scale(fault.loss_scale)}"
    if fault.cause == "range" and fault.exact_value is not None and fmt is not None:
        held = abs(fault.exact_value) < fmt.overflow_at
        end = "an operand did not fit" if held else f"{name} ends at {number(fmt.max)}"
        what += f"; exactly {number(fault.exact_value)} ({end})"
    elif fault.reference_value is not None and math.isfinite(fault.reference_value):
        what += f"; FP32 has {number(fault.reference_value)}"
    elif fault.fp32_also_fails:
        what += "; in FP32 too" if not fault.tensor else ""
    yield what
    if fault.index is not None:
        yield _elements(fault)


def _elements(fault: FirstFault) -> str:
    parts = [element(fault.index or ())] if fault.index or not fault.shape else []
    samples = sample_words(fault.samples)
    where = f"{parts[0] if parts else ''}{' of ' if parts and samples else ''}{samples}"
    batch = f"batch {fault.batch}" if fault.batch else ""
    counts = f"{fault.count:,} of {count_words(fault.numel, 'element')}" if fault.count is not None else ""
    return "; ".join(part for part in (where, counts, batch) if part)


def _inputs(fault: FirstFault) -> Iterator[Row]:
    label = "Inputs"
    for operand in fault.inputs[:_MOST_INPUTS]:
        yield label, (words(operand_words(operand)),)
        label = ""
    if len(fault.inputs) > _MOST_INPUTS:
        yield label, (words(f"and {len(fault.inputs) - _MOST_INPUTS} more"),)


def operand_words(operand: OperandFact) -> str:
    """``float16 48x64: absmax 146, 3 zero, from blocks.1.ff relu``."""
    shape = "x".join(str(size) for size in operand.shape) or "no dimension"
    facts = [f"absmax {number(operand.absmax)}" if operand.absmax is not None else "nothing finite"]
    for count, what in ((operand.nans, "NaN"), (operand.infs, "inf"), (operand.zeros, "zero")):
        if count:
            facts.append(f"{count:,} {what}")
    made = operand.made_by
    origin = f", from {place(made.module)} {short_op(made.op)}" if made else ""
    return f"{operand.dtype} {shape}: {', '.join(facts)}{origin}"


def _root(fault: FirstFault, options: Options) -> Iterator[Row]:
    root = fault.root
    if root is None:
        return
    yield "Root", (words("became zero in ", (place(root.site.module), "bold")), words(root.site.op))
    if root.source is not None and root.source != fault.source:
        yield "", _line(root.source, options)
    if root.made_by is not None and root.made_by.source is not None:
        yield "", (words(f"made by {place(root.made_by.module)} {short_op(root.made_by.op)}"),)
        yield "", _line(root.made_by.source, options)


def _reaches(fault: FirstFault) -> Iterator[Row]:
    # once it is in the loss, that it spreads through the whole backward is no news
    path = [s for s in fault.path if s.phase == "forward" or not fault.reaches_loss]
    steps = list(_steps(path))
    first, last = _PATH_STEPS
    if len(steps) > first + last:
        steps = [*steps[:first], "...", *steps[-last:]]
    arrives = fault.reaches_loss or fault.reaches_gradients or fault.spoils_buffers
    if fault.absorbed_at is not None and not arrives:
        at = fault.absorbed_at
        absorbed = f"absorbed by {place(at.module)} {short_op(at.op)}"
        yield "Reaches", (words(" -> ".join([*steps, absorbed])),)
        return
    ends = ["loss"] if fault.reaches_loss else []
    if fault.reaches_gradients:
        names = listing(fault.reaches_gradients, 2)
        ends.append(f"{count_words(len(fault.reaches_gradients), 'gradient')} ({names})")
    if fault.spoils_buffers:
        names = listing(fault.spoils_buffers, 2)
        ends.append(f"{count_words(len(fault.spoils_buffers), 'buffer')} ({names}), read by the next step")
    if steps or ends:
        yield "Reaches", (words(" -> ".join([*steps, " and ".join(ends)] if ends else steps)),)


def _steps(path: Sequence[Step]) -> Iterator[str]:
    """Each module on the path with its ops, with a note where the value becomes NaN."""
    value = ""
    for (phase, module), stay in groupby(path, key=lambda step: (step.phase, step.module)):
        ops = []
        for step in stay:
            note = " (becomes NaN)" if step.value == "nan" and value == "inf" else ""
            ops.append(short_op(step.op) + note)
            value = step.value
        shown = ops if len(ops) <= 3 else [ops[0], "...", ops[-1]]
        backward = " backward" if phase == "backward" else ""
        yield f"{module or 'top level'}{backward} {', '.join(shown)}"

"""Numbers and places in the words of a report."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ampdoctor.facts.site import Source
from ampdoctor.facts.trace import Step
from ampdoctor.facts.words import AS_BUILT, Mode

FORMAT_NAMES = {"float16": "FP16", "bfloat16": "BF16", "float32": "FP32", "float64": "FP64"}
TOP_LEVEL = "top-level code"
"""Module '' is the root module or the loss: code outside any named module."""


def format_name(dtype: str) -> str:
    """``FP16`` for ``float16``."""
    return FORMAT_NAMES.get(dtype, dtype)


def in_mode(precision: str, mode: Mode) -> str:
    """``float16 autocast``; ``as built, for float16`` where nothing was cast for it."""
    return f"as built, for {precision}" if mode in AS_BUILT else f"{precision} {mode}"


def number(value: float | None) -> str:
    """At most four figures, with thousands separators: ``66,246``, ``2.91``, ``3.1e-3``; ``?`` for None."""
    if value is None:
        return "?"
    if not math.isfinite(value):
        return str(float(value))
    size = abs(value)
    if size == 0:
        return "0"
    if 1000 <= size < 1e7:
        return f"{value:,.0f}"
    if 0.01 <= size < 1000:
        return f"{value:.3g}"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def scale(value: float) -> str:
    """A loss scale: ``65,536``; small ones as powers of two where they are one: ``2^-2``."""
    if value > 0 and math.isfinite(value) and (value < 1 or value >= 1e7):
        exponent = math.log2(value)
        if exponent.is_integer():
            return two_to(int(exponent))
    return f"{value:,.0f}" if math.isfinite(value) and value == int(value) else number(value)


def two_to(exponent: int) -> str:
    """``2^14``."""
    return f"2^{exponent}"


def power(value: float) -> str:
    """``2^14``: in a window the exponent is what one compares. What is no power of two stays a number."""
    mantissa, exponent = math.frexp(value)
    return two_to(exponent - 1) if mantissa == 0.5 else scale(value)


def settling_words(skips: int, at: float) -> str:
    """``GradScaler skips 2 steps and settles at 2^14``."""
    return f"GradScaler skips {count_words(skips, 'step')} and settles at {power(at)}"


def percent(share: float | None) -> str:
    """``6.3 %``; ``?`` for None. Never 0 or 100 for a share that is neither."""
    if share is None:
        return "?"
    if 0 < share < 0.0005:
        return "<0.1 %"
    if 0.9995 <= share < 1:
        return ">99.9 %"
    return f"{100 * share:.1f} %"


def place(module: str) -> str:
    """The module's path, or words for the code outside any."""
    return module or TOP_LEVEL


def source_place(source: Source | None) -> str:
    """``model.py:33``, the file by its name alone; '' where the line is not known."""
    if source is None:
        return ""
    name = source.file.replace("\\", "/").rpartition("/")[2]
    return f"{name}:{source.line}"


def short_op(op: str) -> str:
    """``mm`` for ``aten::mm``."""
    return op.removeprefix("aten::").removeprefix("python::")


def step_words(step: Step) -> str:
    """One op on the path of a bad value: ``blocks.1 add (model.py:40): inf``."""
    where = f" ({source_place(step.source)})" if step.source else ""
    backward = " backward" if step.phase == "backward" else ""
    return f"{place(step.module)} {short_op(step.op)}{backward}{where}: {step.value}"


def first_line(message: str) -> str:
    """The first line of an exception's message, and of that the first sentence."""
    line = message.strip().partition("\n")[0]
    return line.partition(". ")[0]


def count_words(n: int, noun: str, plural: str = "") -> str:
    """``1 batch``, ``1,204 batches``."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def listing(names: Sequence[object], most: int = 4) -> str:
    """``a, b, c and 9 more``."""
    shown = ", ".join(str(name) for name in names[:most])
    rest = len(names) - most
    return f"{shown} and {rest:,} more" if rest > 0 else shown


def element(index: tuple[int, ...]) -> str:
    """``element [0, 3, 7]``; a zero-dimensional tensor has only one."""
    return f"element [{', '.join(str(i) for i in index)}]" if index else "a single value"


def sample_words(samples: tuple[int, ...] | None) -> str:
    """``sample 2``, ``samples 0, 3 and 5 more``; '' where samples are not known."""
    if not samples:
        return ""
    return f"sample {samples[0]}" if len(samples) == 1 else f"samples {listing(samples)}"

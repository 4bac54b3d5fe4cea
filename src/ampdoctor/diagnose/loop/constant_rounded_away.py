"""AMP418: a constant that low precision makes zero

What it means
    The script puts a number into a low-precision tensor and it becomes 0:
    below 2^-25 in FP16. A learning rate, an eps or a ratio that divides by it
    later gives 0 or infinity.

How it is found
    torch.tensor(number, dtype=torch.float16 or torch.bfloat16) outside of
    modules gave 0 for a number that is not.

What to do
    Keep such numbers in Python floats or in FP32.

Example
    torch.tensor(0.05 / 1e16, dtype=torch.float16) is 0, and max_lr / init_lr
    is then infinite.

Sources
    tinygrad/tinygrad#2981.
"""

from __future__ import annotations

from collections.abc import Iterable

from ampdoctor.diagnose.loop.rule import LoopRule, by_line, finding, of_kind
from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.wording import format_name, number
from ampdoctor.facts.loop import LoopTrace

_REMEDY = "Keep this number in a Python float or in float32."


def check(trace: LoopTrace) -> Iterable[Finding]:
    """One finding for each line whose constant became zero."""
    for group in by_line(of_kind(trace, "constant")):
        first = group[0]
        message = f"{number(first.value)} becomes 0 in {format_name(first.dtype)}."
        evidence = {"value": first.value, "dtype": first.dtype}
        yield finding(CODE, TITLE, "warning", first.source, message, _REMEDY, evidence, len(group))


CODE, TITLE = "AMP418", "a constant that low precision makes zero"
RULE = LoopRule(CODE, TITLE, "warning", __doc__ or "", check)

"""AMP101: forward overflow

What it means
    An op of the forward made a number that is finite in exact arithmetic and
    larger than the format can hold. FP16 ends at 65,504; from 65,520 on,
    rounding gives inf. FP32 goes to 3.4e38, so the same model is fine there.
    The infinity often shows up as a NaN some modules later: inf - inf in a
    norm, inf / inf in a softmax, 0 * inf in backward. It may also vanish (1 /
    inf is 0) and leave a finite, wrong loss.

How it is found
    The op whose inputs are finite and whose output is not is run once more on
    the same inputs in float64. It is an overflow where that gives a finite
    number; the largest of the tensor is the exact value in the report. The
    FP32 pass must not have the same infinity in the same place. Severity is
    error where the value reaches the loss or a gradient, or makes them wrong;
    info where it is absorbed and the outcome agrees with FP32.

What to do
    1. Run this op in FP32: torch.autocast(device_type, enabled=False) around
       the line, .float() on its inputs. One such island costs little;
       ampdoctor names the place, and says where the result itself does not
       fit: then what takes it must be in FP32 as well.
    2. Or make the value smaller: scale before a product instead of after it
       (queries before Q K^T), take a mean instead of a sum, clamp a learnt
       temperature, divide a residual branch.
    3. Or train in BF16, which has FP32's range (and only 8 bits of
       precision).
    Lowering the loss scale does not help: it acts on backward only.

Example
    T5's feed-forward in FP16: wo(h) is 66,246 for a few elements, the
    residual becomes inf, the final norm makes it NaN. Two modules after the
    fault is where a hook would have found it.

Sources
    huggingface/transformers#5651 and #12225 (T5, Pegasus),
    pytorch/vision#3383 (box areas), huggingface/diffusers#7188 (SDXL's VAE),
    pytorch/pytorch#133085 (a squared norm that vanishes).
"""

from __future__ import annotations

from collections.abc import Iterable

from ampdoctor.diagnose.advice import keep_in_fp32
from ampdoctor.diagnose.birth_findings import (
    births_of,
    findings_by_place,
    overflow_words,
    samples_sentence,
    sentence,
)
from ampdoctor.diagnose.cause import RANGE, stays_half
from ampdoctor.diagnose.constants import is_constant_fault
from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.rule import Rule
from ampdoctor.diagnose.standing import JudgedBirth
from ampdoctor.diagnose.verdict import Reading
from ampdoctor.diagnose.wording import format_name
from ampdoctor.facts.floats import BFLOAT16

_PRODUCTS = ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm")


def check(reading: Reading) -> Iterable[Finding]:
    """One finding per place in the forward where a value leaves the format's range."""
    births = births_of(reading, _speaks)
    return findings_by_place(CODE, TITLE, births, overflow_words, lambda j: _remedy(reading, j))


def _speaks(judged: JudgedBirth) -> bool:
    return judged.in_forward and judged.cause == RANGE and not is_constant_fault(judged.birth)


def _remedy(reading: Reading, judged: JudgedBirth) -> str:
    birth = judged.birth
    op = birth.site.op if birth.site else ""
    advice = keep_in_fp32(reading, judged)
    if judged.recomputed and birth.dtype != reading.trace.environment.dtype:
        return (
            f"Backward recomputes this line in {format_name(birth.dtype)}, not in {reading.fmt_name} like "
            "forward: give the recomputation the forward's autocast settings."
        )
    if birth.implicit_cast:
        advice = "autocast puts this cast in, the line converts nothing: " + advice
    lone = [o for o in birth.operands if o.shape == () and o.dtype == "float32" and (o.absmax or 0) > 1]
    if lone and birth.dtype != "float32":
        advice = (
            "the FP32 operand has no dimension and does not promote the half one: clamp it "
            "(CLIP clamps its scale to 100), or call .float() on the other"
        )
    elif op in _PRODUCTS and len(birth.operands) >= 2 and all(o.made_by for o in birth.operands[-2:]):
        advice += "; or scale one factor down before the product instead of the result after it"
    if samples_sentence(judged):
        what = "that sample" if len(birth.samples or ()) == 1 else "those samples"
        advice += f"; look at {what} first"
    exact = birth.exact_value
    fits_bf16 = (exact is None or abs(exact) < BFLOAT16.overflow_at) and not stays_half(birth)
    if judged.fp32_fails and not stays_half(birth):
        advice += ". That alone does not mend it: the FP32 run is not finite either"
    elif birth.dtype == "float16" and fits_bf16 and not lone:
        advice += "; or train in BF16"
    return sentence(advice)


CODE, TITLE = "AMP101", "forward overflow"
RULE = Rule(CODE, TITLE, "error", __doc__ or "", check)

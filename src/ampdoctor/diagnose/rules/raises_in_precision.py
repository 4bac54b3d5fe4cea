"""AMP107: the model raises in this precision only

What it means
    The FP32 pass runs through, the low-precision pass raises: an op that
    autocast refuses (binary_cross_entropy), two operands of different dtypes
    where none is promoted, an op without a kernel for half.

How it is found
    Both passes run the same batch. The exception is attributed to the module,
    the op and the user's line. Where CUDA's autocast would refuse the op and
    the scan ran on a CPU, the refusal is emulated, and said to be.

What to do
    binary_cross_entropy: use binary_cross_entropy_with_logits on the logits,
    which autocast runs in FP32. Dtype mismatch: convert one side on that
    line, or create the tensor with dtype=x.dtype. No kernel: run the line in
    FP32 with autocast disabled.

Example
    RuntimeError: torch.nn.functional.binary_cross_entropy and
    torch.nn.BCELoss are unsafe to autocast.

Sources
    The autocast op reference in PyTorch's documentation; NVIDIA/apex#1052.
"""

from __future__ import annotations

from collections.abc import Iterable

from ampdoctor.diagnose.advice import autocast_off
from ampdoctor.diagnose.birth_findings import sentence
from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.rule import Rule
from ampdoctor.diagnose.verdict import Reading
from ampdoctor.diagnose.wording import first_line
from ampdoctor.facts.trace import Raised
from ampdoctor.facts.words import AUTOCASTS

_NO_KERNEL = ("unsupported dtype", "not implemented for", "not supported", "when computing in half precision")
_DTYPE_WORDS = ("dtype", "same type", "scalar type", "expected m1 and m2", "must have the same")


def check(reading: Reading) -> Iterable[Finding]:
    """The exception, where it comes in this precision only; a constant that does not fit is AMP106's."""
    if reading.raised is None or reading.raised.raised is None:
        return ()
    raised = reading.raised.raised
    if raised.constant is not None:
        return ()
    return (
        Finding(
            code=CODE,
            severity="error" if reading.basis is None else "info",
            title=TITLE,
            module=raised.module,
            op=raised.op,
            source=raised.source,
            message=_message(raised),
            evidence={
                "exception": raised.type,
                "message": raised.message,
                "phase": raised.phase,
                "batch": reading.raised.batch,
                "emulated_refusal": raised.emulated_refusal,
            },
            remedy=_remedy(reading, raised)
            if reading.basis is None
            else "It goes with the fault that it found.",
        ),
    )


def _message(raised: Raised) -> str:
    if raised.emulated_refusal:  # the exception's own type exists only in the emulation
        return f"{sentence(first_line(raised.message))} On a GPU this raises; here the refusal is emulated."
    return f"{raised.type} in {raised.phase}: {first_line(raised.message)}"


def _remedy(reading: Reading, raised: Raised) -> str:
    text = raised.message.lower()
    autocasts = reading.trace.environment.mode in AUTOCASTS
    off = f", {autocast_off(reading)} around it" if autocasts else ""
    if "binary_cross_entropy" in text or "binary_cross_entropy" in raised.op:
        return "Use binary_cross_entropy_with_logits on the logits (drop the sigmoid)."
    if any(word in text for word in _NO_KERNEL):
        return f"This op does not run in {reading.fmt_name}: call .float() on its input on this line{off}."
    if any(word in text for word in _DTYPE_WORDS):
        return "Convert one side on this line (x.to(y.dtype)), or create the tensor in the dtype it meets."
    return f"Run this line in FP32: .float() on its inputs{off}."


CODE, TITLE = "AMP107", "raises in this precision only"
RULE = Rule(CODE, TITLE, "error", __doc__ or "", check)

"""AMP901: measured on a CPU

What it means
    The scan ran on a CPU. With emulation (the default), CUDA's autocast op
    lists are followed and every low-precision op is computed in FP32 and
    rounded once, as tensor cores do. Without it, the CPU's own autocast ran,
    which keeps softmax, norms, exp and pow in half where CUDA does not.
    On a GPU it says that the fused kernel which counts each tensor could not
    be compiled there: torch's own ops counted instead. The figures are the
    same; it takes longer and needs scratch memory.

How it is found
    By the device the candidate pass ran on, and by the compiler's error.

What to do
    Trust what it finds: ranges and rounding are the format's, not the
    device's. For the last doubt run the same command on a GPU: fused
    attention kernels, reduced-precision reductions and the order of sums may
    differ there.

Example
    A hand-written Q K^T that overflows here would not inside a fused
    attention kernel, which scales first.

Sources
    The autocast op reference in PyTorch's documentation.
"""

from __future__ import annotations

from collections.abc import Iterable

from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.rule import Rule
from ampdoctor.diagnose.verdict import Reading
from ampdoctor.diagnose.wording import count_words, listing, short_op


def check(reading: Reading) -> Iterable[Finding]:
    """One finding where no GPU took part, or where its kernel could not be made."""
    environment = reading.trace.environment
    if environment.kernel_refusal:
        return (_counted_by_torch(environment.kernel_refusal),)
    if not environment.device.startswith("cpu"):
        return ()
    own = [short_op(op) for op in reading.trace.refused_ops]
    if environment.emulates:
        message = "CUDA's autocast policy and rounding were emulated on a CPU; no GPU kernel ran."
        if own:
            message += f" {count_words(len(own), 'op')} had to use the CPU's own kernel: {listing(own)}."
    else:
        message = "The CPU's own autocast ran; CUDA's keeps other ops in FP32, so results there can differ."
    return (
        Finding(
            code=CODE,
            severity="info",
            title=TITLE,
            module="",
            op="",
            source=None,
            message=message,
            evidence={"device": environment.device, "emulates": environment.emulates, "cpu_kernels": own},
            remedy="Run the same command on a GPU for the last doubt.",
        ),
    )


def _counted_by_torch(refusal: str) -> Finding:
    return Finding(
        code=CODE,
        severity="info",
        title="counted without the fused kernel",
        module="",
        op="",
        source=None,
        message=f"Torch's own ops counted the tensors: the fused kernel could not be compiled ({refusal}).",
        evidence={"kernel_refusal": refusal},
        remedy="No figure depends on it. Triton wants a C compiler and a cache it can write to.",
    )


CODE, TITLE = "AMP901", "measured on a CPU"
RULE = Rule(CODE, TITLE, "info", __doc__ or "", check)

"""AMP901: measured on a CPU

What it means
    The scan ran on a CPU. With emulation (the default), CUDA's autocast op
    lists are followed, and a low-precision op is computed in FP32 and rounded
    where CUDA's kernel stores a low-precision number: most once, some between
    their steps too (losses, logsumexp, a convolution's bias), and sums that
    are made of atomic additions (index_add, scatter_add) at every addition.
    Where an op's rule is not known, or an order is the GPU's own, the finding
    names the op. Without emulation the CPU's own autocast ran, which keeps
    softmax, norms, exp and pow in half where CUDA does not.
    On a GPU it says that the fused kernel which counts each tensor could not
    be compiled there: torch's own ops counted instead. The figures are the
    same; it takes longer and needs scratch memory.

How it is found
    By the device the candidate pass ran on, and by the compiler's error.

What to do
    Trust what it finds: ranges and rounding are the format's, not the
    device's. For the last doubt run the same command on a GPU. Three things
    are never seen here: which attention kernel runs there (flash, efficient,
    cuDNN's or the plain formula), the order of sums, and matrix products
    whose parts are added up in half (split-K), which
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction and its
    twin for BF16 allow, and by default do.

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
from ampdoctor.facts.trace import Trace

_NOT_EMULATED = {
    "cumprod": "rounds each partial product, in the GPU's own order",
    "cumsum": "rounds each partial sum, in the GPU's own order",
    "embedding_dense_backward": "adds up in groups, which round by its size",
    "index_put": "rounds each addition or only the sum, by its size",
    "index_reduce": "rounds after each element",
    "logcumsumexp": "rounds each partial sum, in the GPU's own order",
    "scaled_dot_product_attention": "runs in one of four kernels, and which is not known here",
}
"""What CUDA does in half that is not done here, by op: ``cumsum`` in ATen/native/cuda/ScanUtils.cuh,
``index_put`` with ``accumulate`` in cuda/Indexing.cu, the embedding's in cuda/EmbeddingBackwardKernel.cuh,
the choice of an attention kernel in transformers/cuda/sdp_utils.cpp."""


def not_emulated(trace: Trace) -> list[str]:
    """The ops in low precision of which CUDA's rounding is not known or not followed, each with what it is.
    (``index_put`` adds up in the backward of ``index``; elsewhere it mostly assigns.)"""
    low = {
        short_op(record.site.op).removesuffix("_")
        for done in trace.passes
        if done.role != "reference"
        for record in done.sites
        if record.stats.dtype in ("float16", "bfloat16")
        and ("index_put" not in record.site.op or record.forward_op.endswith("index"))
    }
    return [f"{op} {what}" for op, what in _NOT_EMULATED.items() if op in low]


def check(reading: Reading) -> Iterable[Finding]:
    """One finding where no GPU took part, or where its kernel could not be made."""
    environment = reading.trace.environment
    if environment.kernel_refusal:
        return (_counted_by_torch(environment.kernel_refusal),)
    if not environment.device.startswith("cpu"):
        return ()
    own = [short_op(op) for op in reading.trace.refused_ops]
    unknown = not_emulated(reading.trace) if environment.emulates else []
    if environment.emulates:
        message = "CUDA's autocast policy and rounding were emulated on a CPU; no GPU kernel ran."
        if own:
            message += f" {count_words(len(own), 'op')} had to use the CPU's own kernel: {listing(own)}."
        if unknown:
            message += f" Not emulated: {'; '.join(unknown)}."
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
            evidence={
                "device": environment.device,
                "emulates": environment.emulates,
                "cpu_kernels": own,
                "not_emulated": unknown,
            },
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

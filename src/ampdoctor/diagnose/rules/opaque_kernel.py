"""AMP903: a kernel that cannot be seen into

What it means
    Part of the model runs inside a kernel or script whose single steps
    PyTorch does not show: a custom CUDA or Triton op, a ScriptModule, a
    compiled graph. Its inputs and outputs were measured, its inside was not.
    A fault inside shows at its output.

How it is found
    Ops from outside ATen, modules that ran without any op being seen, and
    modules compiled with torch.compile, which the scan runs eagerly instead:
    a compiled kernel keeps intermediate values in FP32 that eager mode
    rounds, so it may be fine where the scan finds a flush.

What to do
    Where the kernel has a plain PyTorch fallback, scan with that.

Example
    Mamba's selective scan as a CUDA extension.
"""

from __future__ import annotations

from collections.abc import Iterator

from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.rule import Rule
from ampdoctor.diagnose.verdict import Reading


def check(reading: Reading) -> Iterator[Finding]:
    """One finding per opaque op and module, and per compiled module."""
    for op in reading.trace.opaque_ops:
        yield _finding("", op, f"{op} is no PyTorch op: it was measured at its inputs and outputs only.")
    for module in reading.trace.modules:
        if module.opaque:
            yield _finding(
                module.path, "", f"No op inside this {module.type} was seen; only its outputs were measured."
            )
        if module.compiled:
            yield _finding(
                module.path,
                "",
                "Compiled with torch.compile; the scan ran it eagerly, op by op, and rounded each.",
            )


def _finding(module: str, op: str, message: str) -> Finding:
    return Finding(
        code=CODE,
        severity="info",
        title=TITLE,
        module=module,
        op=op,
        source=None,
        message=message,
        evidence={},
        remedy="Scan with a plain PyTorch version of it where there is one.",
    )


CODE, TITLE = "AMP903", "a kernel that cannot be seen into"
RULE = Rule(CODE, TITLE, "info", __doc__ or "", check)

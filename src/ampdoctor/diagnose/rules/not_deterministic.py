"""AMP905: not deterministic

What it means
    The same batch with the same seed gave two different losses. The FP32 pass
    and the low-precision pass then differ for reasons that are not precision:
    errors against the reference, and who lost what, are uncertain.

How it is found
    The first batch's candidate forward runs twice more with nothing recorded.

What to do
    Seed what draws the noise (a generator of its own, NumPy, the system's
    clock), or set it fixed for the scan.
    torch.use_deterministic_algorithms(True) names kernels that are not
    deterministic.
"""

from __future__ import annotations

from collections.abc import Iterable

from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.rule import Rule
from ampdoctor.diagnose.verdict import Reading


def check(reading: Reading) -> Iterable[Finding]:
    """One finding where the loss did not repeat."""
    if reading.trace.deterministic is not False:
        return ()
    return (
        Finding(
            code=CODE,
            severity="warning",
            title=TITLE,
            module="",
            op="",
            source=None,
            message="The same batch and seed gave another loss: comparisons with FP32 are uncertain.",
            evidence={"seed": reading.trace.seed},
            remedy="Seed what draws the noise, or switch it off for the scan.",
        ),
    )


CODE, TITLE = "AMP905", "not deterministic"
RULE = Rule(CODE, TITLE, "warning", __doc__ or "", check)

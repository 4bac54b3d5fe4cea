"""AMP416: GradScaler with bfloat16

What it means
    BF16 has the range of FP32: its gradients need no loss scale. A scaler
    costs a pass over all gradients a step, and skips steps for infinities
    that its own scale made.

How it is found
    A loss was scaled, and every autocast region of the script is BF16.

What to do
    Leave the scaler out, or make it with enabled=False where the dtype is
    BF16.

Example
    torch.autocast('cuda', dtype=torch.bfloat16) together with GradScaler()

Sources
    The AMP documentation of PyTorch, 'Gradient Scaling'.
"""

from __future__ import annotations

from collections.abc import Iterable

from ampdoctor.diagnose.loop.rule import LoopRule, finding, of_kind
from ampdoctor.diagnose.report import Finding
from ampdoctor.facts.loop import LoopTrace

_REMEDY = "Make the scaler with enabled=False where the dtype is bfloat16."


def check(trace: LoopTrace) -> Iterable[Finding]:
    """One finding where a scaler scales and nothing runs in FP16."""
    scaled = [e for e in of_kind(trace, "scale") if e.scale != 1.0]
    dtypes = {e.dtype for e in of_kind(trace, "autocast_enter")}
    half = any(e.dtype == "float16" for e in of_kind(trace, "cast"))
    if scaled and dtypes == {"bfloat16"} and not half:
        message = "The loss is scaled, and autocast is BF16 throughout: its range needs no loss scale."
        evidence = {"loss_scale": scaled[0].scale}
        yield finding(CODE, TITLE, "warning", scaled[0].source, message, _REMEDY, evidence, len(scaled))


CODE, TITLE = "AMP416", "GradScaler with bfloat16"
RULE = LoopRule(CODE, TITLE, "warning", __doc__ or "", check)

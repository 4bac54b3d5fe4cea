"""What a recorded step is, and whether the same went wrong when it was run again."""

from __future__ import annotations

import math

from ampdoctor.diagnose.wording import count_words
from ampdoctor.facts.bundle import Bundle
from ampdoctor.facts.trace import Pass, Trace

LOSS_AGREES = 0.05
"""Relative: a loss in FP16 that is computed by other kernels differs by less; one of other draws by more."""


def why_recorded(bundle: Bundle) -> str:
    """The step, and why it was recorded: ``step 300: its loss is nan``."""
    return f"step {bundle.step:,}: {_why(bundle)}"


def _why(bundle: Bundle) -> str:
    if bundle.why == "loss":
        return f"its loss is {bundle.loss}"
    if bundle.why == "gradients":
        return f"the norm of its gradients is {bundle.gradient_norm}, its loss is finite"
    if bundle.why == "skips":
        return f"{count_words(bundle.skips, 'step')} skipped in a row, at scale {bundle.loss_scale or 0:g}"
    return f"its loss of {bundle.loss:.4g} is far above the median of {bundle.median_loss or 0:.4g}"


def not_reproduced(bundle: Bundle, trace: Trace) -> str:
    """What the replay did not show of what was recorded; '' where it showed it, or could not run."""
    passes = [p for p in trace.passes if p.role != "reference"]
    if not passes or any(p.raised is not None for p in passes):
        return ""
    candidates = [p for p in passes if p.role == "candidate"] or passes
    loss = candidates[0].loss
    if bundle.why == "loss" and _finite(loss):
        return f"the recorded loss is {bundle.loss}, here it is {loss:.4g}"
    if bundle.why in ("gradients", "skips") and not any(_has_nonfinite(p) for p in passes):
        return "the recorded gradients are not all finite, here they are"
    recorded = bundle.loss
    if recorded is None or loss is None or not math.isfinite(recorded):
        return ""
    if math.isfinite(loss) and abs(loss - recorded) <= LOSS_AGREES * max(abs(recorded), abs(loss)):
        return ""
    return f"the recorded loss is {recorded:.4g}, here it is {loss:.4g}"


def _finite(loss: float | None) -> bool:
    return loss is not None and math.isfinite(loss)


def _has_nonfinite(seen: Pass) -> bool:
    return not _finite(seen.loss) or any(p.nan + p.inf > 0 for p in seen.parameters)

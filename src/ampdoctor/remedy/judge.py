"""Whether a run under treatment holds, by the limits that the diagnosis calls harm."""

from __future__ import annotations

import math

from ampdoctor.diagnose.outcome import LOSS_ERROR, is_finite, is_materially_wrong
from ampdoctor.facts.trace import Pass
from ampdoctor.scales.drift import far_buffers, loss_error
from ampdoctor.scales.gradient_harm import GRADIENT_ERROR, harmed, without_noise


def what_fails(run: Pass, exact: Pass, forward_only: bool) -> str:
    """What is wrong with a run next to its FP32 reference, in words; '' where it holds."""
    if run.raised is not None:
        return f"raises {run.raised.type}: {run.raised.message.splitlines()[0] if run.raised.message else ''}"
    broken = [b.name for b in run.buffers if b.nonfinite_here_only]
    if broken:
        return f"buffer {broken[0]} is not finite"
    far = far_buffers(run)
    if far:
        return f"the buffer {far[0].name} is {far[0].relative_error:.1%} off FP32"
    if forward_only:
        if run.output_error is None:
            return "outputs are not finite"
        return f"outputs are {run.output_error:.1%} off FP32" if run.output_error > LOSS_ERROR else ""
    if not is_finite(run.loss):
        return f"the loss is {run.loss}"
    error = loss_error(run, exact)
    if error is not None and error > LOSS_ERROR:
        return f"the loss is {error:.1%} off FP32"
    bad = next((p.name for p in run.parameters if p.nan or p.inf), None)
    if bad is not None:
        return f"the gradient of {bad} is not finite at loss scale {run.loss_scale:g}"
    lost = harmed(run.parameters)
    if lost:
        return f"the gradient of {lost[0].name} is lost at loss scale {run.loss_scale:g}"
    off = [p for p in without_noise(run.parameters) if (p.relative_error or 0.0) > GRADIENT_ERROR]
    if off:
        return f"the gradient of {off[0].name} is {off[0].relative_error:.1%} off FP32"
    if is_materially_wrong(run, exact):
        return "the gradients are off FP32"
    return ""


def fails_in_fp32(exact: Pass, forward_only: bool) -> bool:
    """Whether the reference itself raises or ends with a loss or a gradient that is not finite."""
    if exact.raised is not None or any(p.nan or p.inf for p in exact.parameters):
        return True
    return not forward_only and exact.loss is not None and not math.isfinite(exact.loss)

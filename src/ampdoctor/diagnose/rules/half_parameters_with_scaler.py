"""AMP302: half parameters with GradScaler

What it means
    The parameters themselves are FP16, so their gradients are too. Dividing
    such a gradient by the loss scale would flush what the scale had saved, so
    torch.amp.GradScaler does not do it: unscale_() and step() raise
    "Attempting to unscale FP16 gradients."

How it is found
    The scanned run has FP16 gradients, a loss scale other than 1 and an
    optimizer. `ampdoctor scaler` shows the exception itself.

What to do
    Leave the parameters in FP32 and wrap forward and loss in torch.autocast:
    GradScaler is made for that, and the FP32 weights keep small updates as
    well (AMP301). Do not call model.half() for training.

Example
    model.half(), then scaler.scale(loss).backward(); scaler.step(optimizer):
    ValueError in the first step.

Sources
    torch/amp/grad_scaler.py (_unscale_grads_), Lightning-AI/
    pytorch-lightning#5140.
"""

from __future__ import annotations

from collections.abc import Iterable

from ampdoctor.diagnose.outcome import find_pass
from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.rule import Rule
from ampdoctor.diagnose.verdict import Reading
from ampdoctor.diagnose.wording import count_words, scale
from ampdoctor.facts.loop import LoopTrace
from ampdoctor.facts.site import Source
from ampdoctor.facts.training import ScalerRun
from ampdoctor.facts.words import Severity

_REMEDY = "Leave the parameters in FP32 and use torch.autocast; do not call model.half() for training."


def check(reading: Reading) -> Iterable[Finding]:
    """One finding where a loss scale is configured for FP16 gradients that an optimizer is to use."""
    environment, step = reading.trace.environment, reading.trace.optimizer_step
    if step is None or environment.loss_scale == 1.0:
        return ()
    candidate = find_pass(reading.trace, "candidate", 0, reading.trace.loss_scale)
    half = [p.name for p in candidate.parameters if p.dtype == "float16"] if candidate else []
    if not half:
        return ()
    message = (
        f"FP16 gradients of {count_words(len(half), 'parameter')}, and a loss scale of "
        f"{scale(environment.loss_scale)}: GradScaler refuses to unscale them."
    )
    return (_finding("warning", message, {"loss_scale": environment.loss_scale, "parameters": half}),)


def refused(run: ScalerRun) -> Iterable[Finding]:
    """One finding where GradScaler has refused FP16 gradients; none where it refused others."""
    if not run.refusal or "float16" not in run.parameter_dtypes:
        return ()
    message = f"The trained parameters are FP16, and torch raised: {run.refusal}"
    return (_finding("error", message, {"exception": run.refusal}),)


def in_loop(trace: LoopTrace) -> Iterable[Finding]:
    """One finding where the scaler of a training script refused, at the line that made the model half."""
    for event in trace.events:
        if event.kind in ("unscale", "scaler_step") and "FP16 gradients" in event.raised:
            casts = [e for e in trace.events[: event.order] if e.kind == "cast" and e.dtype == "float16"]
            source = casts[-1].source if casts else event.source
            message = f"The trained parameters are FP16, and torch raised: {event.raised}"
            yield _finding("error", message, {"exception": event.raised}, source)
            return


def _finding(
    severity: Severity, message: str, evidence: dict[str, object], source: Source | None = None
) -> Finding:
    return Finding(
        code=CODE,
        severity=severity,
        title=TITLE,
        module="",
        op="",
        source=source,
        message=message,
        evidence=evidence,
        remedy=_REMEDY,
    )


CODE, TITLE = "AMP302", "half parameters with GradScaler"
RULE = Rule(CODE, TITLE, "warning", __doc__ or "", check)

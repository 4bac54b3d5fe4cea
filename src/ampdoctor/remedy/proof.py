"""How far a treated run is off FP32, as the figures that stand beside a treatment."""

from __future__ import annotations

from collections.abc import Sequence

from ampdoctor.diagnose.outcome import find_pass
from ampdoctor.diagnose.report import Report
from ampdoctor.facts.trace import Pass, Trace
from ampdoctor.remedy.prescription import Proof
from ampdoctor.scales.drift import loss_error
from ampdoctor.scales.gradient_harm import without_noise


def proof_of_scan(trace: Trace, report: Report) -> Proof:
    """The figures of a whole scan under a treatment."""
    runs = [(p, find_pass(trace, "reference", p.batch)) for p in trace.passes if p.role == "candidate"]
    return proof_of(runs, trace.loss_scale, report.loss_scale.window)


def proof_of(
    runs: Sequence[tuple[Pass, Pass | None]], scale: float, window: tuple[float, float] | None
) -> Proof:
    """The figures of the worst of these (candidate, reference)."""
    losses = [loss_error(run, exact) for run, exact in runs if exact is not None]
    gradients = [q.relative_error for run, _ in runs for q in without_noise(run.parameters)]
    return Proof(
        len(runs),
        scale,
        max((error for error in losses if error is not None), default=None),
        max((error for error in gradients if error is not None), default=None),
        window,
    )

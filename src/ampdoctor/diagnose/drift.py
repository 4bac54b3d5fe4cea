"""Finite and wrong: what has parted from the reference by rounding alone, and where that begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ampdoctor.diagnose.outcome import find_pass, is_healthy
from ampdoctor.diagnose.wording import percent
from ampdoctor.facts.drift import Drift
from ampdoctor.facts.trace import BufferState, ParameterGradient, Pass, Trace
from ampdoctor.scales.drift import OUTCOME_ERROR, far_buffers, loss_error, rounds_alike
from ampdoctor.scales.gradient_harm import GRADIENT_ERROR, harmed, without_noise

BestErrors = Mapping[int, Mapping[str, float | None]]
"""Of each batch the parameters' relative errors at the recommended scale."""


_GRADIENT_ERROR_BF16 = 0.5
"""In place of GRADIENT_ERROR: BF16 keeps three bits less, and by its rounding alone one parameter of a
healthy ResNet (tests/zoo.py) is off by 0.295."""


_FALLS = 1.5
"""An error that falls by this factor from one scale to the next higher one is of rounding near zero: twice
the scale halves it, while a fault of an op's is as large at both."""

_NORMALISES = frozenset(
    f"aten::{n}{way}"
    for n in ("native_batch_norm", "cudnn_batch_norm", "native_group_norm", "native_layer_norm")
    for way in ("", "_backward")
)
"""Ops that divide by how much their values vary, and so magnify the rounding of values that hardly do."""


@dataclass(frozen=True)
class DriftReading:
    """A batch whose outcome is finite and far off, at the configured loss scale and at the best one alike."""

    batch: int
    loss_error: float | None
    """Relative; None where it is within the limit."""
    output_error: float | None
    """The same of the outputs of a forward-only pass."""
    gradients: tuple[ParameterGradient, ...]
    """Those that are far off, worst first; what underflow took and noise left out."""
    buffers: tuple[BufferState, ...]
    """Those that are left far off, worst first."""
    begins: Drift | None
    """The op where the error appears; None where none stands out."""

    @property
    def is_forward(self) -> bool:
        """It begins at an op of the forward."""
        return self.begins is not None and self.begins.site.phase == "forward"


def read_drift(trace: Trace, best_errors: BestErrors) -> DriftReading | None:
    """The worst batch; None where nothing has parted.

    None also where two runs of the candidate differ by themselves (AMP905), and where the error begins at an
    op that chooses or draws: one rounding turns a choice over, and nothing is computed wrongly for it.
    """
    if trace.deterministic is False:
        return None
    readings = [
        reading
        for batch in range(trace.environment.batches)
        if (reading := _read_batch(trace, batch, best_errors.get(batch, {}))) is not None
    ]
    return max(readings, key=lambda r: (r.begins is not None, len(r.gradients)), default=None)


def _read_batch(trace: Trace, batch: int, best: Mapping[str, float | None]) -> DriftReading | None:
    candidate = find_pass(trace, "candidate", batch, trace.loss_scale)
    reference = find_pass(trace, "reference", batch)
    if candidate is None or reference is None or not is_healthy(candidate, trace.environment.forward_only):
        return None
    begins = next((d for d in trace.drifts if d.batch == batch), None)
    if begins is not None and begins.kind == "choice":
        return None
    loss, outputs = _far(loss_error(candidate, reference)), _far(candidate.output_error)
    gradients = _far_gradients(candidate, best)
    if begins is None or begins.site.op in _NORMALISES:
        gradients = tuple(
            p for p in gradients if not rounds_alike(p.relative_error, p.reference_error, candidate.dtype)
        )
    rounded = {p.name for p in still_underflow(trace, batch)}
    gradients = tuple(p for p in gradients if p.name not in rounded)
    buffers = tuple(far_buffers(candidate))
    if (
        not gradients
        and not buffers
        and outputs is None
        and (loss is None or begins is None or _cancels(begins))
    ):
        return None
    return DriftReading(batch, loss, outputs, gradients, buffers, begins)


def _cancels(begins: Drift) -> bool:
    """True of a loss whose terms have both signs and leave almost nothing: a critic's difference, the sum of
    normalised values. It is far off by the mere rounding of its terms; without a wrong gradient that proves
    nothing."""
    return begins.scalar and begins.kind in ("difference", "long-sum", "running-sum")


def _far(error: float | None) -> float | None:
    return error if error is not None and error > OUTCOME_ERROR else None


def _far_gradients(candidate: Pass, best: Mapping[str, float | None]) -> tuple[ParameterGradient, ...]:
    lost = {p.name for p in harmed(candidate.parameters, best)}
    limit = _GRADIENT_ERROR_BF16 if candidate.dtype == "bfloat16" else GRADIENT_ERROR
    found = [
        p
        for p in without_noise(candidate.parameters)
        if p.name not in lost and p.relative_error is not None and p.relative_error > limit
    ]
    return tuple(sorted(found, key=lambda p: -(p.relative_error or 0.0)))


def still_underflow(trace: Trace, batch: int) -> list[ParameterGradient]:
    """Parameters whose gradient is far off though no zeros say so, and was further off at the next lower
    scale that was run: what is left of underflow at the judged one. The worst first."""
    candidate = find_pass(trace, "candidate", batch, trace.loss_scale)
    lower = [r for r in trace.scale_runs if r.batch == batch and r.finite and r.loss_scale < trace.loss_scale]
    if candidate is None or not lower:
        return []
    nearest = max(lower, key=lambda r: r.loss_scale)
    before = {p.name: p.relative_error or 0.0 for p in nearest.parameters}
    found = [
        p
        for p in without_noise(candidate.parameters)
        if p.relative_error is not None
        and p.relative_error > GRADIENT_ERROR
        and before.get(p.name, 0.0) > _FALLS * p.relative_error
    ]
    return sorted(found, key=lambda p: -(p.relative_error or 0.0))


def outcome_words(drift: DriftReading) -> str:
    """What the drift does to the outcome, in the figures that were compared."""
    parts = []
    if drift.loss_error is not None:
        parts.append(f"the loss is off by {percent(drift.loss_error)}")
    if drift.output_error is not None:
        parts.append(f"the outputs are off by {percent(drift.output_error)}")
    if drift.gradients:
        worst = drift.gradients[0]
        parts.append(f"the gradient of {worst.name} is off by {percent(worst.relative_error)}")
    if drift.buffers:
        worst_buffer = drift.buffers[0]
        error = percent(worst_buffer.relative_error)
        parts.append(f"the buffer {worst_buffer.name}, read by the next step, is off by {error}")
    words = " and ".join(parts)
    return words[:1].upper() + words[1:] + "."

"""A run against its reference, as facts without tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ampdoctor.facts.trace import BufferState, ParameterGradient, Pass, SiteRecord
from ampdoctor.load.workload import Workload
from ampdoctor.probe.passes.buffers import compare_buffers
from ampdoctor.probe.passes.gradients import compare_gradients, output_error
from ampdoctor.probe.passes.one_pass import Run
from ampdoctor.probe.passes.reference_noise import reference_errors
from ampdoctor.probe.passes.stages import Progress
from ampdoctor.scales.drift import OUTCOME_ERROR
from ampdoctor.scales.gradient_harm import LOST_ERROR, that_train


@dataclass
class Comparison:
    """Compares the runs of a workload's batches; a batch's float64 pass is run once, when first needed."""

    workload: Workload
    seed: int
    progress: Progress
    noise: dict[int, dict[str, float]] = field(default_factory=dict)
    """Batch -> errors of its reference's gradients and buffers against float64, where they were asked for."""

    def facts(self, index: int, run: Run, exact: Run, records: tuple[SiteRecord, ...] = ()) -> Pass:
        """The facts of a run of batch ``index``, next to its reference ``exact``."""
        p = run.precision
        parameters = compare_gradients(run.gradients, p.loss_scale, exact.gradients)
        buffers = compare_buffers(run.buffers, exact.buffers, run.written | exact.written)
        trusted = run is exact or run.interrupted or not _is_far_off(parameters, buffers)
        noise = {} if trusted else self._noise(index, exact)
        return Pass(
            role=p.role,
            batch=index,
            mode=p.mode,
            dtype=str(p.dtype).removeprefix("torch."),
            loss_scale=p.loss_scale,
            loss=float(run.loss) if run.loss is not None and run.loss.numel() == 1 else None,
            loss_dtype=str(run.loss.dtype).removeprefix("torch.") if run.loss is not None else "",
            raised=run.raised,
            sites=records,
            parameters=tuple(replace(p, reference_error=noise.get(p.name)) for p in parameters),
            seconds=run.seconds,
            backward_ran=run.backward_ran,
            interrupted=run.interrupted,
            buffers=tuple(replace(b, reference_error=noise.get(b.name)) for b in buffers),
            output_error=output_error(run.outputs, exact.outputs),
            raised_as_written=run.raised_as_written,
        )

    def _noise(self, index: int, exact: Run) -> dict[str, float]:
        """How far what the reference left can be trusted; measured once a batch."""
        if index not in self.noise:
            self.progress(f"float64 reference, batch {index}", 1, 1)
            batch = self.workload.batches[index]
            self.noise[index] = reference_errors(self.workload, batch, self.seed, exact)
        return self.noise[index]


def _is_far_off(parameters: Sequence[ParameterGradient], buffers: Sequence[BufferState]) -> bool:
    return any((p.relative_error or 0.0) > LOST_ERROR for p in that_train(parameters)) or any(
        (b.relative_error or 0.0) > OUTCOME_ERROR for b in buffers
    )

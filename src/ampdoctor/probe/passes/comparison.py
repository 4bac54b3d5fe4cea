"""A run against its reference, as facts without tensors."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ampdoctor.facts.trace import ParameterGradient, Pass, SiteRecord
from ampdoctor.load.workload import Workload
from ampdoctor.probe.passes.buffers import compare_buffers
from ampdoctor.probe.passes.gradients import compare_gradients, output_error
from ampdoctor.probe.passes.one_pass import Run
from ampdoctor.probe.passes.reference_noise import reference_errors
from ampdoctor.probe.stages import Progress
from ampdoctor.scales.gradient_harm import LOST_ERROR, that_train


@dataclass
class Comparison:
    """Compares the runs of a workload's batches; a batch's float64 pass is run once, when first needed."""

    workload: Workload
    seed: int
    progress: Progress
    noise: dict[int, dict[str, float]] = field(default_factory=dict)
    """Batch -> errors of its reference gradients against float64, where they were asked for."""

    def facts(self, index: int, run: Run, exact: Run, records: tuple[SiteRecord, ...] = ()) -> Pass:
        """The facts of a run of batch ``index``, next to its reference ``exact``."""
        p = run.precision
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
            parameters=self._compared(index, run, exact),
            seconds=run.seconds,
            backward_ran=run.backward_ran,
            interrupted=run.interrupted,
            buffers=compare_buffers(run.buffers, exact.buffers),
            output_error=output_error(run.outputs, exact.outputs),
            raised_as_written=run.raised_as_written,
        )

    def _compared(self, index: int, run: Run, exact: Run) -> tuple[ParameterGradient, ...]:
        """The gradients against the reference's; where one is far off, with how far that can be trusted."""
        compared = compare_gradients(run.gradients, run.precision.loss_scale, exact.gradients)
        errors = [p.relative_error or 0.0 for p in that_train(compared)]
        if run is exact or run.interrupted or max(errors, default=0.0) <= LOST_ERROR:
            return compared
        if index not in self.noise:
            self.progress(f"float64 reference, batch {index}", 1, 1)
            self.noise[index] = reference_errors(
                self.workload, self.workload.batches[index], self.seed, exact
            )
        return tuple(replace(p, reference_error=self.noise[index].get(p.name)) for p in compared)

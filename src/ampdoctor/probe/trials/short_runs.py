"""Short runs of one workload under many plans: facts of loss, gradients and buffers, and nothing of sites."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ampdoctor.facts.trace import Pass
from ampdoctor.load.workload import Workload
from ampdoctor.probe.passes.comparison import Comparison
from ampdoctor.probe.passes.device import choose_device, outside_autocast
from ampdoctor.probe.passes.one_pass import Run, run_pass
from ampdoctor.probe.passes.precision import candidate, reference
from ampdoctor.probe.passes.stages import Progress
from ampdoctor.probe.plan import Plan
from ampdoctor.probe.watch.unrecorded import Unrecorded

LOWER_SCALES = (4096.0, 256.0, 16.0, 1.0)
"""Loss scales that backward is repeated at while it overflows at the configured one."""


class Trials:
    """Runs plans next to FP32 references that are run once. ``runs`` counts every candidate pass."""

    def __init__(
        self, workload: Workload, plan: Plan, progress: Progress, widens_casts: bool = False
    ) -> None:
        self.workload = workload
        self.progress = progress
        self.device = choose_device(plan.device)
        self.runs = 0
        self._comparison = Comparison(workload, plan.seed, progress)
        self._exact: dict[int, Run] = {}
        self._reference = replace(reference(self.device), widens_casts=widens_casts)
        self._seed = plan.seed

    def run(
        self, plan: Plan, order: Sequence[int], lower_scales: Sequence[float] = ()
    ) -> Iterator[tuple[Pass, Pass]]:
        """(candidate, reference) of each batch in ``order``, run when it is asked for.

        ``lower_scales`` are tried on the same forward while gradients are not finite. Raises
        KeyboardInterrupt for one that came while the model ran.
        """
        for index in order:
            with outside_autocast({"cpu", self.device.type}):
                exact = self._exact_run(index)
                self.runs += 1
                run = run_pass(
                    self.workload,
                    self.workload.batches[index],
                    candidate(plan, self.device, plan.loss_scale),
                    self._seed,
                    Unrecorded,
                    lower_scales,
                )
                if run.interrupted:
                    raise KeyboardInterrupt
                facts = self._comparison.facts(index, run, exact)
                yield facts, self._comparison.facts(index, exact, exact)

    def _exact_run(self, index: int) -> Run:
        if index not in self._exact:
            batch = self.workload.batches[index]
            run = run_pass(self.workload, batch, self._reference, self._seed, Unrecorded)
            if run.interrupted:
                raise KeyboardInterrupt
            self._exact[index] = run
        return self._exact[index]

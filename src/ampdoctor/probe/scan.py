"""``probe(workload, plan)``: every pass that a report needs, as one Trace."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ampdoctor.errors import ProbeError, memory_runs_out
from ampdoctor.facts.drift import Drift
from ampdoctor.facts.environment import Settling
from ampdoctor.facts.trace import (
    Birth,
    OptimizerStep,
    Pass,
    ScaleRun,
    SiteRecord,
    Trace,
)
from ampdoctor.load.workload import Workload
from ampdoctor.probe.births.bad_tensors import bad_tensors
from ampdoctor.probe.births.by_design import only_as_in_reference
from ampdoctor.probe.births.closer_look import CloserLook, where_raised
from ampdoctor.probe.births.drift import find_drift
from ampdoctor.probe.cuda.on_cpu import fused_dropout
from ampdoctor.probe.optimizer_steps import optimizer_steps
from ampdoctor.probe.passes.alone import alone
from ampdoctor.probe.passes.comparison import Comparison
from ampdoctor.probe.passes.device import choose_device, outside_autocast
from ampdoctor.probe.passes.environment import environment_of
from ampdoctor.probe.passes.isolation import refuse_without_values
from ampdoctor.probe.passes.kept_pass import KeptPass
from ampdoctor.probe.passes.observer_effect import effect_of_recording
from ampdoctor.probe.passes.one_pass import Run, run_pass
from ampdoctor.probe.passes.precision import Precision, candidate, reference
from ampdoctor.probe.passes.stages import Progress, Stages
from ampdoctor.probe.plan import Plan
from ampdoctor.probe.trials.alternatives import with_alternatives
from ampdoctor.probe.trials.scale_search import ScaleSearch
from ampdoctor.probe.watch.module_records import module_records
from ampdoctor.probe.watch.nonfinite import has_nonfinite
from ampdoctor.probe.watch.observer import Observer
from ampdoctor.probe.watch.unrecorded import Absent
from ampdoctor.scales.drift import has_parted
from ampdoctor.scales.recordings import is_finite
from ampdoctor.scales.search_allowed import why_not_searched


def probe(workload: Workload, plan: Plan, progress: Progress | None = None) -> Trace:
    """Everything seen of ``workload`` run as ``plan`` says, next to its FP32 reference.

    Raises ConfigError for a device that is not there, LoadError where the model gives no loss, ProbeError
    where it raises in every precision, memory runs out or another scan is running. Interrupted, it returns
    what it has.
    """
    stages = Stages(progress)
    with alone(), memory_runs_out(lambda: stages.doing("while measuring")):
        trace = _Session(workload, plan, stages).run()
        return with_alternatives(trace, workload, plan, stages)


@dataclass
class _Session:
    workload: Workload
    plan: Plan
    progress: Progress
    passes: list[Pass] = field(default_factory=list)
    births: list[Birth] = field(default_factory=list)
    opaque_ops: dict[str, None] = field(default_factory=dict)
    left_ops: dict[str, None] = field(default_factory=dict)
    exact: dict[int, Run] = field(default_factory=dict)
    """Batch -> its reference run, whose gradients later passes are compared with."""
    exact_passes: dict[int, Pass] = field(default_factory=dict)
    """Batch -> the facts of that run."""
    waiting: list[int] = field(default_factory=list)
    """Batches for whose gradients a dynamic scaler lowers its scale, before anything is said of them."""
    settling: Settling | None = None
    search: ScaleSearch | None = None
    sound: dict[tuple[int, float], bool] = field(default_factory=dict)
    """(batch, loss scale) of the search's runs -> nothing in the pass is NaN or inf."""
    scale_runs: tuple[ScaleRun, ...] = ()
    drifts: list[Drift] = field(default_factory=list)
    optimizer_step: OptimizerStep | None = None
    first_candidate: Run | None = None
    kept: tuple[int, KeptPass] | None = None
    """(batch, the last candidate of it), whose backward serves further scales while it is open."""
    ask_for_effect: bool = False
    """Whether recording changes what the first candidate computes is still to be asked: by a pass that closes
    the one that is kept, so where no other does, when all scales are run."""
    deterministic: bool | None = None
    observer_changed_loss: bool | None = None
    interrupted: bool = False

    @property
    def loss_scale(self) -> float:
        """The scale that is judged."""
        return self.settling.loss_scale if self.settling else self.plan.loss_scale

    def run(self) -> Trace:
        self.device = choose_device(self.plan.device)
        self.reference = reference(self.device)
        self.comparison = Comparison(self.workload, self.plan.seed, self.progress)
        emulates = candidate(self.plan, self.device, self.plan.loss_scale).emulates_cuda
        as_on_cuda = fused_dropout() if emulates else nullcontext()  # in the reference, too: sites pair
        with outside_autocast({"cpu", self.device.type}), as_on_cuda:
            try:
                return self._run()
            finally:
                self._let_go()

    def _run(self) -> Trace:
        started = time.perf_counter()
        refuse_without_values(self.workload.model)
        bad = tuple(bad_tensors(self.workload.model, self.workload.batches))
        for index, batch in enumerate(self.workload.batches):
            self._unless_interrupted(partial(self._batch, index, batch))
        parts = (self._settle, self._search_scale, self._let_go, self._ask_for_effect)
        for part in (*parts, self._look_for_drift, self._step_optimizer):
            self._unless_interrupted(part)
        return Trace(
            environment=environment_of(self.workload, self.plan, self.device),
            modules=module_records(self.workload, self.first_candidate),
            bad_tensors=bad,
            passes=tuple(self.passes),
            births=tuple(self.births),
            scale_runs=self.scale_runs,
            settling=self.settling,
            drifts=tuple(self.drifts),
            opaque_ops=tuple(sorted(self.opaque_ops)),
            refused_ops=tuple(sorted(self.left_ops)),
            deterministic=self.deterministic,
            observer_changed_loss=self.observer_changed_loss,
            seed=self.plan.seed,
            seconds=time.perf_counter() - started,
            interrupted=self.interrupted,
            optimizer_step=self.optimizer_step,
        )

    def _unless_interrupted(self, part: Callable[[], None]) -> None:
        if self.interrupted:
            return
        try:
            part()
        except KeyboardInterrupt:
            self.interrupted = True

    def _ask_for_effect(self) -> None:
        """Whether the first candidate's loss repeats, and whether recording changes it."""
        if self.ask_for_effect and self.first_candidate is not None:
            self.ask_for_effect = False
            self.progress("batch 0 without recording", 1, 2 * len(self.workload.batches))
            batch, seed = self.workload.batches[0], self.plan.seed
            seen = effect_of_recording(self.workload, batch, self.first_candidate, seed)
            self.deterministic, self.observer_changed_loss, interrupted = seen
            self.interrupted |= interrupted

    def _look_for_drift(self) -> None:
        """Of the batches whose outcome is finite and far off, the op where that begins."""
        for index in range(len(self.workload.batches)):
            twin = self.exact_passes.get(index)
            ours = [p for p in self.passes if p.role != "reference" and p.batch == index]
            explained = any(b.batch == index and b.site and b.site.phase == "forward" for b in self.births)
            if twin is None or explained or not any(has_parted(p, twin) for p in ours):
                continue
            self.progress(f"where batch {index} parts from FP32", 1, 1)
            precision = candidate(self.plan, self.device, self.loss_scale)
            found = find_drift(self.workload, index, precision, self.plan.seed)
            if found is not None:
                self.drifts.append(found)

    def _step_optimizer(self) -> None:
        plan = replace(self.plan, loss_scale=self.loss_scale)
        self.optimizer_step = optimizer_steps(self.workload, plan, self.device, self.progress)

    # -- one batch: reference, candidate, and a second look where something is not finite

    def _batch(self, index: int, batch: Any) -> None:
        steps = 2 * len(self.workload.batches)
        self.progress(f"FP32 reference, batch {index}", 2 * index, steps)
        exact = self._plain(batch, self.reference)
        self.exact[index] = exact
        self._keep(index, exact, exact)
        if self.interrupted:
            return
        self.progress(f"{self.plan.dtype} candidate, batch {index}", 2 * index + 1, steps)
        precision = candidate(self.plan, self.device, self.plan.loss_scale)
        run = self._candidate(index, precision)
        if self.first_candidate is None:
            self.first_candidate = run
        self._refuse_general_failure(batch, exact, run)
        if exact.raised is not None and run.raised is None and not self.interrupted:
            exact = self._with_casts_widened(index, batch, exact)
        records = run.observer.records()
        self._keep(index, run, exact, records)
        waits, sound = self._waits_for_scaler(index), self._is_sound(index, records, run)
        if index == 0 and (waits or sound) and not self.interrupted:
            self.ask_for_effect = True
            if self.kept is None or len(self.workload.batches) > 1:
                self._ask_for_effect()
        run.gradients = {}  # of the size of the weights, and compared by now
        if waits:
            self.waiting.append(index)
        elif not sound and not self.interrupted:
            self._look_closer(self.passes[-1])

    def _with_casts_widened(self, index: int, batch: Any, as_written: Run) -> Run:
        """The reference without the model's own casts to 16 bits; the one that raised, if this does too."""
        wide = self._plain(batch, replace(self.reference, widens_casts=True))
        if wide.raised is not None or wide.interrupted:
            return as_written
        self.reference, wide.raised_as_written = wide.precision, as_written.raised
        self.exact[index] = wide
        self.passes.pop()
        self._keep(index, wide, wide)
        return wide

    # -- the loss scales that work

    def _waits_for_scaler(self, index: int) -> bool:
        """Only the last candidate's gradients are not finite, and FP32's are or could not be had: a scaler
        lowers its scale, and running shows whether that helps."""
        run, exact = self.passes[-1], self.exact_passes[index]
        sound = run.loss is not None and math.isfinite(run.loss) and run.backward_ran and run.raised is None
        return (
            self.plan.scaler == "dynamic"
            and sound
            and not is_finite(run)
            and (is_finite(exact) or exact.raised is not None)
        )

    def _settle(self) -> None:
        """The candidates are those at the scale where a dynamic scaler settles, if it does."""
        runs = self._candidates()
        if self.plan.scaler != "dynamic" or not runs:
            return
        if all(map(is_finite, runs)):
            self.settling = Settling(self.plan.loss_scale, 0)
        elif all(is_finite(p) or p.batch in self.waiting for p in runs):
            self.settling = self._search().settle()
        if self.settling is None or not self.settling.skips:
            for p in runs:
                if p.batch in self.waiting:
                    self._look_closer(p)
            return
        self.births.clear()
        self.passes = [replace(p, role="ladder") if p.role == "candidate" else p for p in self.passes]
        for p in self._search().candidates:
            self.passes.append(replace(p, role="candidate"))
            if not self.sound[p.batch, p.loss_scale]:
                self._look_closer(self.passes[-1])

    def _search(self) -> ScaleSearch:
        """The search, which remembers every run that it was given or made."""
        if self.search is None:
            self.search = ScaleSearch(
                list(self.exact_passes.values()),
                self._candidates(),
                self._at_scale,
                self.plan.scale_margin_bits,
                self.plan.underflow_limit,
            )
        return self.search

    def _search_scale(self) -> None:
        if not self.plan.search_scale or why_not_searched(self.passes, self.births, self.plan.scaler):
            return
        search = self._search()
        search.candidates = self._candidates()
        try:
            search.run()
        finally:
            known = {(p.batch, p.loss_scale) for p in self.passes if p.role != "reference"}
            self.passes += [p for p in search.recordings.values() if (p.batch, p.loss_scale) not in known]
        self.scale_runs = search.runs

    def _candidates(self) -> list[Pass]:
        return [p for p in self.passes if p.role == "candidate"]

    def _at_scale(self, index: int, scale: float) -> Pass:
        self.progress(f"loss scale {scale:,.0f}, batch {index}", 1, 1)
        run = self._candidate(index, candidate(self.plan, self.device, scale))
        if run.interrupted:
            raise KeyboardInterrupt  # no further scale is tried
        records = run.observer.records()
        self.sound[index, scale] = self._is_sound(index, records, run)
        return replace(self.comparison.facts(index, run, self.exact[index], records), role="ladder")

    def _plain(self, batch: Any, precision: Precision) -> Run:
        return self._noted(run_pass(self.workload, batch, precision, self.plan.seed, Observer))

    def _candidate(self, index: int, precision: Precision) -> Run:
        """A candidate of this batch: another backward of the one that is open, else a whole pass."""
        if self.kept is not None and self.kept[0] == index and self.kept[1].is_open:
            run = self.kept[1].again(precision.loss_scale)
            if run is not None:
                return self._noted(run)
        batch = self.workload.batches[index]
        if not self.plan.search_scale or self.device.type != "cpu":  # a GPU's memory may not hold the graph
            return self._plain(batch, precision)
        kept = KeptPass(self.workload, batch, precision, self.plan.seed)
        self.kept = index, kept
        return self._noted(kept.run)

    def _let_go(self) -> None:
        if self.kept is not None:
            self.kept[1].close()

    def _noted(self, run: Run) -> Run:
        self.opaque_ops.update(run.observer.opaque_ops)
        self.left_ops.update(run.observer.left_ops)
        self.interrupted |= run.interrupted
        return run

    def _look_closer(self, run: Pass) -> None:
        """A second look at a candidate that is not sound: its births, and exact counts."""
        if self.interrupted:
            return
        self.progress(f"second look, batch {run.batch}", 2 * run.batch + 1, 2 * len(self.workload.batches))
        precision = candidate(self.plan, self.device, run.loss_scale)
        look = CloserLook(self.workload, run, precision, self.reference, self.plan.seed)
        offset = len(self.births)
        for birth in look.births(self.exact_passes.get(run.batch)):
            parents = tuple(p + offset for p in birth.parents)
            self.births.append(replace(birth, id=birth.id + offset, parents=parents))
        self.passes[self.passes.index(run)] = look.counted
        self.interrupted |= look.interrupted

    def _is_sound(self, index: int, records: tuple[SiteRecord, ...], run: Run) -> bool:
        """Nothing is NaN or inf but infinities that FP32 has too, a mask's, and that come through nowhere."""
        left = [*run.gradients.values(), *(run.buffers[name] for name in run.written)]
        if any(map(has_nonfinite, left if run.loss is None else [run.loss, *left])):
            return False
        twins = self.exact_passes[index].sites if run.raised is None else ()
        return only_as_in_reference(records, twins)

    def _keep(self, index: int, run: Run, exact: Run, records: tuple[SiteRecord, ...] | None = None) -> None:
        """The facts of a run, without its tensors, are the last of ``passes``."""
        records = run.observer.records() if records is None else records
        self.passes.append(self.comparison.facts(index, run, exact, records))
        if run is exact:
            self.exact_passes[index] = self.passes[-1]

    def _refuse_general_failure(self, batch: Any, exact: Run, run: Run) -> None:
        """A model that raises the same in FP32 has a plain bug; there is nothing to compare."""
        a, b = exact.raised, run.raised
        if a is None or b is None or (a.type, a.source) != (b.type, b.source):
            return
        unseen = run_pass(self.workload, batch, reference(self.device), self.plan.seed, Absent)
        if unseen.raised is None:
            raise ProbeError(
                f"the model runs in FP32, and cannot while its ops are recorded: {a.type}: {a.message}",
                f"{where_raised(a)}; leave that out of what is scanned, or report it as a bug of ampdoctor's",
                a.traceback,
            )
        raise ProbeError(
            f"the model raises in FP32 as well: {a.type}: {a.message}",
            "; ".join(filter(None, (where_raised(a), a.passed_as, "run it in plain FP32 first"))),
            a.traceback,
        )

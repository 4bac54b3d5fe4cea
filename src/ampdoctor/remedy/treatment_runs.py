"""Treatments run: in a short pass of every batch, or in a whole scan where only that can judge."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ampdoctor.diagnose.engine import diagnose
from ampdoctor.diagnose.outcome import find_pass
from ampdoctor.diagnose.policy import Policy
from ampdoctor.diagnose.report import Report
from ampdoctor.facts.trace import Pass, Trace
from ampdoctor.load.workload import Workload
from ampdoctor.probe.passes.stages import Progress
from ampdoctor.probe.plan import Plan, ScaledModule, WideModule
from ampdoctor.probe.scan import probe
from ampdoctor.probe.trials.short_runs import LOWER_SCALES, Trials
from ampdoctor.remedy.judge import what_fails
from ampdoctor.remedy.plan import TreatmentPlan
from ampdoctor.remedy.plan_file import plan_text


class BudgetSpent(Exception):
    """The search took as many passes as it may."""


def treated(plan: Plan, treatment: TreatmentPlan) -> Plan:
    """How to run the candidate under a treatment. What it says of the loss scale stays; BF16 needs none."""
    scale, scaler = treatment.loss_scale, plan.scaler
    if scale is not None:
        scaler = "none" if treatment.dtype == "bfloat16" and scale == 1.0 else "fixed"
    elif scaler == "dynamic" and treatment.dtype == "bfloat16":
        scale, scaler = 1.0, "none"
    return replace(
        plan,
        loss_scale=plan.loss_scale if scale is None else scale,
        scaler=scaler,
        dtype=treatment.dtype or plan.dtype,
        wide_modules=tuple(WideModule(path, treatment.output == "cast") for path in treatment.fp32),
        wide_loss=treatment.loss_fp32,
        line_changes=treatment.lines,
        formats=treatment.formats,
        scaled_modules=tuple(ScaledModule(path, factor) for path, factor in treatment.scales.items()),
    )


@dataclass
class TreatmentRuns:
    """Runs treatments and says what is wrong under each. A plan is run once."""

    workload: Workload
    plan: Plan
    policy: Policy
    budget: int
    progress: Progress
    scans: int = 0
    """Passes of scans that stood in for trials."""
    by_scan: bool = False
    """Short runs see nothing wrong (drift, updates, zeros on the way): only a scan can judge."""
    trials: Trials = field(init=False)
    order: list[int] = field(init=False)
    """The batches, the one that failed last first."""
    known: dict[str, str] = field(default_factory=dict)
    """{plan: what is wrong under it}"""

    def __post_init__(self) -> None:
        self.order = list(range(len(self.workload.batches)))

    def without(self) -> tuple[Trace, Report]:
        """A scan without any treatment; what it says of the reference, the short runs go by."""
        trace, report = self.scan(TreatmentPlan())
        widens = any(p.raised_as_written is not None for p in trace.passes if p.role == "reference")
        self.trials = Trials(self.workload, self.plan, self.progress, widens)
        return trace, report

    @property
    def passes(self) -> int:
        """How many were taken, those of scans in a trial's stead as well."""
        return self.trials.runs + self.scans

    def works(self, plan: TreatmentPlan) -> bool:
        """Whether it holds in a short run on every batch, whatever the scan without treatment needed."""
        by_scan, self.by_scan = self.by_scan, False
        try:
            return self.holds(plan)
        finally:
            self.by_scan = by_scan

    def holds(self, plan: TreatmentPlan) -> bool:
        return self.fails(plan) == ""

    def fails(self, plan: TreatmentPlan) -> str:
        """What is wrong under the plan; '' where it holds on every batch. Each plan is run once."""
        key = plan_text(plan)
        if key not in self.known:
            if self.passes >= self.budget:
                raise BudgetSpent
            self.known[key] = self._scan_fails(plan) if self.by_scan else self.run(plan)
        return self.known[key]

    def run(self, plan: TreatmentPlan, pairs: list[tuple[Pass, Pass]] | None = None) -> str:
        run = treated(self.plan, plan)
        lower = [scale for scale in LOWER_SCALES if scale < run.loss_scale and run.dtype == "float16"]
        if plan.loss_scale is not None:
            lower = []
        self.progress(f"trial {self.trials.runs + 1}", 1, 1)
        for facts, exact in self.trials.run(run, list(self.order), lower):
            if pairs is not None:
                pairs.append((facts, exact))
            why = what_fails(facts, exact, self.workload.forward_only)
            if why:
                self.order.remove(facts.batch)
                self.order.insert(0, facts.batch)  # what fails one is soonest seen to fail there
                return why
        return ""

    def harm(self, trace: Trace) -> str:
        """What is off FP32 in the worst way in any candidate pass of a scan; '' where nothing is."""
        for run in trace.passes:
            exact = find_pass(trace, "reference", run.batch)
            if run.role == "candidate" and exact is not None:
                why = what_fails(run, exact, self.workload.forward_only)
                if why:
                    return why
        return ""

    def _scan_fails(self, plan: TreatmentPlan) -> str:
        trace, report = self.scan(plan)
        self.scans += len(trace.passes) + len(trace.scale_runs)
        return self.harm(trace) if report.verdict == "clean" else report.sentence

    def scan(self, plan: TreatmentPlan) -> tuple[Trace, Report]:
        trace = probe(self.workload, treated(self.plan, plan), self.progress)
        if trace.interrupted:
            raise KeyboardInterrupt
        return trace, diagnose(trace, self.policy)

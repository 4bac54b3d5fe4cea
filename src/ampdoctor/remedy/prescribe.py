"""``prescribe``: treatments from cheap to dear, each run on all batches before it is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from ampdoctor.diagnose.policy import Policy
from ampdoctor.diagnose.report import Finding, Report
from ampdoctor.diagnose.wording import listing, place, source_place
from ampdoctor.diagnose.wording import scale as scale_words
from ampdoctor.errors import memory_runs_out
from ampdoctor.facts.floats import FLOAT32
from ampdoctor.facts.trace import Pass, Trace
from ampdoctor.facts.words import CASTS_WEIGHTS, IslandOutput, TreatmentKind
from ampdoctor.load.workload import Workload
from ampdoctor.probe.passes.stages import Progress, Stages
from ampdoctor.probe.plan import ModuleFormats, Plan
from ampdoctor.probe.trials.format_ranges import ranges_of
from ampdoctor.probe.trials.part_ceilings import Ceilings, base_scale
from ampdoctor.remedy.cost import flops_by_module, share_of
from ampdoctor.remedy.findings import remedied
from ampdoctor.remedy.formats import choices, narrowest, uses_fp16_gradients, with_patterns
from ampdoctor.remedy.formulations import formulations
from ampdoctor.remedy.islands import NEVER_CALLED, is_minimal, module_tree, smallest_islands
from ampdoctor.remedy.judge import fails_in_fp32
from ampdoctor.remedy.parts import fewest_parts
from ampdoctor.remedy.plan import TreatmentPlan, change_words
from ampdoctor.remedy.plan_file import plan_text
from ampdoctor.remedy.prescription import Attempt, Cost, Prescription, Treatment
from ampdoctor.remedy.proof import proof_of, proof_of_scan
from ampdoctor.remedy.treatment_runs import BudgetSpent, TreatmentRuns

BUDGET = 200
"""Passes that the search may take."""


_OF_THE_SCALE = ("backward-overflow", "gradient-underflow", "no-workable-scale")


_ORDER = ("loss-scale", "scale-per-part", "fp32", "a number", "dear", "formulation", "bf16", "formats")
_MOST = 0.5
"""Of the FLOPs: an FP32 treatment that takes more stands behind the change of a number."""


def prescribe(
    workload: Workload,
    plan: Plan,
    policy: Policy,
    budget: int = BUDGET,
    progress: Progress | None = None,
    formats: Sequence[str] = (),
) -> Prescription:
    """The treatments that cure what a scan of ``workload`` as ``plan`` finds; cheapest first.

    ``formats``: words of ``remedy.formats.FORMATS``; with any, the cheapest of them for each module as well.
    Raises what ``probe`` raises, and KeyboardInterrupt where the first scan was interrupted.
    """
    stages = Stages(progress)
    with memory_runs_out(lambda: stages.doing("while searching treatments")):
        runs = TreatmentRuns(workload, plan, policy, budget, stages)
        return _Search(workload, plan, runs, formats).run()


@dataclass
class _Search:
    workload: Workload
    plan: Plan
    runs: TreatmentRuns
    formats: Sequence[str] = ()
    treatments: list[Treatment] = field(default_factory=list)
    tried: list[Attempt] = field(default_factory=list)
    findings_left: dict[str, tuple[Finding, ...]] = field(default_factory=dict)
    """{plan of a treatment: the findings that the scan under it still has}"""

    def run(self) -> Prescription:
        trace, report = self.runs.without()
        references = [p for p in trace.passes if p.role == "reference"]
        incurable = ""
        if report.verdict != "clean":
            genuine = any(fails_in_fp32(p, self.workload.forward_only) for p in references)
            incurable = _genuine(report) if genuine or report.verdict == "bad-input" else ""
            if not incurable:
                self._search(trace, report)
                if not self.treatments:
                    incurable = _nothing(report)
        if self.formats and not incurable.startswith(_GENUINE):
            self._within_budget("formats", "a format for each module", self._formats)
            incurable = "" if self.treatments else incurable
        return Prescription(
            trace.environment, report.verdict, report.sentence, tuple(self.treatments), tuple(self.tried),
            incurable, self.runs.passes, _not_run(report, self.treatments),
            remedied(report.findings, self.treatments, self.findings_left),
        )  # fmt: skip

    def _search(self, trace: Trace, report: Report) -> None:
        if self._loss_scale(report):
            return  # nothing else is needed
        self.runs.by_scan = self.runs.fails(TreatmentPlan()) == ""
        self.runs.known.clear()
        self._within_budget("scale-per-part", "a scale per part", lambda: self._parts(report, trace))
        self._within_budget("fp32", "FP32 islands", lambda: self._islands(report))
        self._within_budget("formulation", "another formulation", lambda: self._formulations(report))
        self._bf16()
        self.treatments.sort(key=_rank)

    def _within_budget(self, kind: TreatmentKind, what: str, search: Callable[[], None]) -> None:
        try:
            search()
        except BudgetSpent:
            self.tried.append(Attempt(kind, what, f"no end within {self.runs.budget} passes"))

    # -- the treatments

    def _loss_scale(self, report: Report) -> bool:
        scales = report.loss_scale
        if report.verdict not in _OF_THE_SCALE:
            return False
        if scales.recommended is None or scales.window is None:
            self.tried.append(Attempt("loss-scale", "a loss scale", "no scale works for all gradients"))
            return False
        what = f"loss scale {scale_words(scales.recommended)}"
        return self._prove("loss-scale", what, TreatmentPlan(loss_scale=scales.recommended), None)

    def _parts(self, report: Report, trace: Trace) -> None:
        if report.verdict not in _OF_THE_SCALE:
            return
        ceilings = Ceilings(self.workload, self.plan, trace.passes, self.runs.progress)
        margin = self.plan.scale_margin_bits
        base = base_scale(report.loss_scale.ceiling, margin)

        def plan_for(paths: Sequence[str]) -> TreatmentPlan:
            factors = {path: ceilings.factor_of(path, base, margin) for path in sorted(paths)}
            scales = {path: factor for path, factor in factors.items() if factor != 1.0}
            return TreatmentPlan(loss_scale=2.0**base, scales=scales)

        def holds(paths: Sequence[str]) -> bool:
            return self.runs.holds(plan_for(paths))

        found = fewest_parts(self.workload.model, holds)
        if found is None:
            whole = plan_for(module_tree(self.workload.model, NEVER_CALLED)[""])
            self.tried.append(Attempt("scale-per-part", "a scale per part", self.runs.fails(whole)))
            return
        plan = plan_for(found)
        what = f"{listing([place(path) for path in plan.scales])} at a scale of its own"
        self._prove("scale-per-part", what, plan, 0.0, lambda: is_minimal(found, holds))

    def _formulations(self, report: Report) -> None:
        if report.verdict == "update-swallowed":
            return  # no line of the model's is at fault
        for lines in formulations(report):
            plan, what = TreatmentPlan(lines=lines), listing([change_words(line) for line in lines])
            why = self.runs.fails(plan)
            if why:
                self.tried.append(Attempt("formulation", what, why))
            elif self._prove("formulation", what, plan, None):
                return

    def _islands(self, report: Report) -> None:
        flops = flops_by_module(self.workload, self.plan, self.runs.progress)
        fault = report.first_fault
        module = fault.module if fault is not None else ""
        guesses = [] if fault is None or not module else [module, module.rpartition(".")[0]]
        # FP32 outputs meet FP32 weights under autocast; half weights want half inputs.
        outputs: tuple[IslandOutput, ...] = (
            ("cast", "fp32") if self.plan.mode in CASTS_WEIGHTS else ("fp32", "cast")
        )
        starts = [(output, loss) for loss in (False, True) for output in outputs]
        if not module:
            starts.insert(0, ("fp32", True))  # the code that is not in any module may be the loss alone
        for output, loss in starts:
            if loss and self.runs.holds(TreatmentPlan(loss_fp32=True)):
                found: tuple[str, ...] | None = ()
            elif loss and starts.index((output, loss)) == 0:
                continue
            else:
                found = self._smallest(TreatmentPlan(output=output, loss_fp32=loss), flops, guesses)
            if found is None:
                continue
            plan = TreatmentPlan(fp32=found, output=output if found else "fp32", loss_fp32=loss)
            cast = replace(plan, output="cast")
            if found and output == "fp32" and self.runs.holds(cast):
                plan = cast  # what comes after it sees what it saw
            parts = [listing([place(path) for path in found])] if found else []
            what = " and ".join([*parts, *(["the loss"] if loss else [])])
            if self._prove(
                "fp32", f"{what} in FP32", plan, share_of(flops, found), partial(self._needs_all, plan)
            ):
                return

    def _needs_all(self, plan: TreatmentPlan) -> bool | None:
        """Whether the plan fails without any one of its FP32 modules; None where it has none."""
        base = replace(plan, loss_scale=None)
        if not plan.fp32:
            return None
        return is_minimal(plan.fp32, lambda paths: self.runs.holds(replace(base, fp32=tuple(sorted(paths)))))

    def _smallest(
        self, base: TreatmentPlan, flops: dict[str, int], guesses: Sequence[str]
    ) -> tuple[str, ...] | None:
        def holds(paths: Sequence[str]) -> bool:
            return self.runs.holds(replace(base, fp32=tuple(sorted(paths))))

        found = smallest_islands(self.workload.model, holds, flops, guesses)
        if found is None:
            whole = replace(base, fp32=("",))
            loss = " and the loss" if base.loss_fp32 else ""
            after = "outputs cast back" if base.output == "cast" else "outputs in FP32"
            self.tried.append(
                Attempt("fp32", f"the whole model{loss} in FP32, {after}", self.runs.fails(whole))
            )
        return found

    def _bf16(self) -> None:
        if self.plan.dtype != "bfloat16":
            self._prove("bf16", "BF16 for all", TreatmentPlan(dtype="bfloat16", loss_scale=1.0), 0.0)

    def _formats(self) -> None:
        ranges = ranges_of(self.workload, self.plan, self.runs.progress)
        found = choices(ranges, self.formats, self.plan.underflow_limit, self.plan.scale_margin_bits)

        def plan_for(table: tuple[ModuleFormats, ...]) -> TreatmentPlan:
            return TreatmentPlan(loss_scale=found.loss_scale, formats=table)

        table = narrowest(found, lambda table: self.runs.works(plan_for(table)))
        if table is None:
            self.tried.append(
                Attempt("formats", "a format for each module", "the widest allowed fail as well")
            )
            return
        plan = plan_for(with_patterns(table))
        pairs: list[tuple[Pass, Pass]] = []
        why = self.runs.run(plan, pairs)
        if why:
            self.tried.append(Attempt("formats", "a format for each module", why))
            return
        if not uses_fp16_gradients(table):
            plan = replace(plan, loss_scale=None)
        low = tuple(item.path for item in table if item.forward != FLOAT32.name)
        share = share_of(flops_by_module(self.workload, self.plan, self.runs.progress), low)
        cost = Cost(None if share is None else 1.0 - share, None)
        self.treatments.append(
            Treatment("formats", plan, proof_of(pairs, found.loss_scale, None), cost, None)
        )

    # -- proving them

    def _prove(
        self,
        kind: TreatmentKind,
        what: str,
        plan: TreatmentPlan,
        flops: float | None,
        minimal: Callable[[], bool | None] = lambda: None,
    ) -> bool:
        """Whether a whole scan under the plan is clean; the treatment is kept then, else the attempt."""
        self.runs.progress(f"proof: {what}", 1, 1)
        trace, report = self.runs.scan(plan)
        window = report.loss_scale
        if report.verdict != "clean" and plan.loss_scale is None and window.recommended and window.window:
            plan = replace(plan, loss_scale=window.recommended)
            trace, report = self.runs.scan(plan)
        why = self.runs.harm(trace) if report.verdict == "clean" else report.sentence
        if why:
            self.tried.append(Attempt(kind, what, why))
            return False
        self.treatments.append(
            Treatment(kind, plan, proof_of_scan(trace, report), Cost(flops, None), minimal())
        )
        self.findings_left[plan_text(plan)] = report.findings
        return True


def _rank(treatment: Treatment) -> int:
    """Where a treatment stands in the list: another number costs nothing, most of a model in FP32 does."""
    if any(change.constant is not None for change in treatment.plan.lines):
        return _ORDER.index("fp32") + 1
    dear = treatment.kind == "fp32" and (treatment.cost.flops or 0.0) > _MOST
    return _ORDER.index(treatment.kind) + 2 * dear


def _not_run(report: Report, treatments: Sequence[Treatment]) -> tuple[str, ...]:
    """What the rules advise at the lines of errors, where no formulation was proven."""
    if any(t.kind in ("loss-scale", "formulation") for t in treatments):
        return ()
    errors = [f for f in report.findings if f.severity == "error" and f.remedy and f.source]
    return tuple(dict.fromkeys(f"{source_place(f.source)}: {f.remedy}" for f in errors))


_GENUINE = "nothing in reach cures this, FP32 fails as well"


def _genuine(report: Report) -> str:
    return f"{_GENUINE}{_at(report)}"


def _nothing(report: Report) -> str:
    return f"nothing in reach cures this: no loss scale, no FP32 module and no other format{_at(report)}"


def _at(report: Report) -> str:
    fault = report.first_fault
    if fault is None or fault.source is None:
        return ""
    return f", at {fault.source.file}:{fault.source.line}: {fault.source.text}"

"""What helps where no loss scale works, found by running it: BF16, a module in FP32, a scale of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from ampdoctor.facts.alternatives import AlternativeRun
from ampdoctor.facts.trace import Pass, Trace
from ampdoctor.facts.words import CASTS_WEIGHTS, AlternativeKind
from ampdoctor.load.workload import Workload
from ampdoctor.probe.passes.scaled_parts import shares_parameters
from ampdoctor.probe.passes.stages import Progress
from ampdoctor.probe.plan import Plan, ScaledModule, WideModule
from ampdoctor.probe.trials.part_ceilings import Ceilings, base_scale
from ampdoctor.probe.trials.short_runs import LOWER_SCALES, Trials
from ampdoctor.scales.gradient_harm import GRADIENT_ERROR, harmed, without_noise
from ampdoctor.scales.powers_of_two import LOWEST, limiting
from ampdoctor.scales.reading import ScaleReading, read_scales
from ampdoctor.scales.recordings import is_finite, reference_tensors


def with_alternatives(trace: Trace, workload: Workload, plan: Plan, progress: Progress) -> Trace:
    """The trace with the runs, of each kind up to the first that works.

    It stays as it is where a loss scale works, was not looked for, or where FP32 fails too.

    Towers are tried as well as single layers: FP32 from the layer that overflows outwards, a scale of its own
    from the tower whose gradient is lost inwards.
    """
    scales = read_scales(trace, plan.underflow_limit, plan.scale_margin_bits)
    references = [p for p in trace.passes if p.role == "reference"]
    if (
        trace.interrupted
        or scales is None
        or not scales.searched
        or scales.window is not None
        or not all(map(is_finite, references))
    ):
        return trace
    trials = Trials(workload, plan, progress, any(p.raised_as_written for p in references))
    tries = _Tries(workload, plan, trials)
    try:
        tries.bfloat16()
        tries.in_fp32(scales, trace)
        tries.scaled_apart(scales, trace)
    except KeyboardInterrupt:
        return replace(trace, interrupted=True)
    return replace(trace, alternatives=tuple(tries.found))


@dataclass
class _Tries:
    workload: Workload
    plan: Plan
    trials: Trials
    found: list[AlternativeRun] = field(default_factory=list)

    def bfloat16(self) -> None:
        if self.plan.dtype != "bfloat16":
            self._run("bfloat16", "", None, replace(self.plan, dtype="bfloat16", loss_scale=1.0))

    def in_fp32(self, scales: ScaleReading, trace: Trace) -> None:
        for path in reversed(list(_outside_in(_loudest(scales, trace)))):
            wide = WideModule(path, casts_back=self.plan.mode in CASTS_WEIGHTS)
            lower = [scale for scale in LOWER_SCALES if scale < self.plan.loss_scale]
            plan = replace(self.plan, wide_modules=(wide,))
            if self._run("module-in-fp32", path, None, plan, lower):
                return

    def scaled_apart(self, scales: ScaleReading, trace: Trace) -> None:
        ceilings = Ceilings(self.workload, self.plan, trace.passes, self.trials.progress)
        ceiling = None if scales.ceiling is None else 2.0**scales.ceiling
        base = base_scale(ceiling, self.plan.scale_margin_bits)
        model = self.workload.model
        overflows_at_1 = scales.ceiling is None or scales.ceiling < LOWEST
        for path in _outside_in(_loudest(scales, trace) if overflows_at_1 else _module_that_loses(trace)):
            if shares_parameters(model, model.get_submodule(path)):
                continue
            factor = ceilings.factor_of(path, base, self.plan.scale_margin_bits)
            plan = replace(self.plan, loss_scale=2.0**base, scaled_modules=(ScaledModule(path, factor),))
            if self._run("module-scaled-apart", path, factor, plan):
                return

    def _run(
        self,
        kind: AlternativeKind,
        module: str,
        factor: float | None,
        plan: Plan,
        lower: Sequence[float] = (),
    ) -> bool:
        """Whether it works; ``lower``: scales to fall back to."""
        self.trials.progress(" ".join(filter(None, ("trial:", _WORDS[kind], module))), 1, 1)
        batches = range(len(self.workload.batches))
        runs = [run for run, _ in self.trials.run(plan, batches, lower)]
        scale = min(run.loss_scale for run in runs)
        if any(run.loss_scale != scale for run in runs):
            runs = [run for run, _ in self.trials.run(replace(plan, loss_scale=scale), batches)]
        works = all(map(_holds, runs))
        self.found.append(AlternativeRun(kind, module, factor, scale, works))
        return works


_WORDS: dict[AlternativeKind, str] = {
    "bfloat16": "BF16 for all",
    "module-in-fp32": "FP32 for",
    "module-scaled-apart": "a scale of its own for",
}


def _holds(run: Pass) -> bool:
    errors = (p.relative_error or 0.0 for p in without_noise(run.parameters))
    return is_finite(run) and not harmed(run.parameters) and max(errors, default=0.0) <= GRADIENT_ERROR


def _loudest(scales: ScaleReading, trace: Trace) -> str:
    """The module whose backward overflows first as the scale rises; '' for none."""
    tensor = scales.high_limit
    if tensor is None or not tensor.site.module:  # a cast in the loss: what it goes into is in a module
        tensor = limiting(t for t in reference_tensors(trace.passes) if t.site.module)
    return tensor.site.module if tensor is not None else ""


def _module_that_loses(trace: Trace) -> str:
    """The module of the parameter that is harmed most at the highest scale that was finite; '' for none."""
    best = max((r.loss_scale for r in trace.scale_runs if r.finite), default=None)
    lost = [p for r in trace.scale_runs if r.loss_scale == best for p in harmed(r.parameters)]
    return lost[0].name.rpartition(".")[0] if lost else ""


def _outside_in(module: str) -> Iterator[str]:
    """``a``, ``a.b``, ``a.b.c``; nothing for the root."""
    names = module.split(".") if module else []
    for end in range(1, len(names) + 1):
        yield ".".join(names[:end])

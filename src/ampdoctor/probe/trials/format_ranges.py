"""What a module's format has to hold: the exponents of its values, and of its gradients, as FP32 has them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor

from ampdoctor.facts.histogram import ExponentHistogram
from ampdoctor.load.workload import Workload
from ampdoctor.probe.passes.device import choose_device, outside_autocast
from ampdoctor.probe.passes.module_formats import finest_modules, tapped
from ampdoctor.probe.passes.one_pass import run_pass
from ampdoctor.probe.passes.precision import reference
from ampdoctor.probe.passes.stages import Progress
from ampdoctor.probe.plan import Plan
from ampdoctor.probe.watch.tally import histogram_of
from ampdoctor.probe.watch.unrecorded import Absent


@dataclass(frozen=True)
class Values:
    """One tensor that would be rounded."""

    absmax: float
    histogram: ExponentHistogram


@dataclass
class Ranges:
    """Every tensor of one of the finest modules, on all batches; gradients at loss scale 1."""

    forward: list[Values] = field(default_factory=list)
    gradient: list[Values] = field(default_factory=list)


def ranges_of(workload: Workload, plan: Plan, progress: Progress) -> dict[str, Ranges]:
    """{path: what its formats have to hold} of the finest modules that were called, in the model's order."""
    progress("ranges of each module's values, in FP32", 1, 1)
    seen: dict[str, Ranges] = defaultdict(Ranges)

    def note(path: str, x: Tensor) -> Tensor:
        if x.numel():
            seen[path].forward.append(_values(x))
        return x

    def note_gradient(path: str, x: Tensor) -> Tensor:
        if x.numel():
            seen[path].gradient.append(_values(x))
        return x

    finest = finest_modules(workload.model)
    taps = {path: (partial(note, path), partial(note_gradient, path)) for path in finest}
    device = choose_device(plan.device)
    with outside_autocast({"cpu", device.type}), tapped(workload.model, taps):
        for batch in workload.batches:
            run = run_pass(workload, batch, reference(device), plan.seed, Absent)
            if run.interrupted:
                raise KeyboardInterrupt
    for path in seen:
        for parameter in finest[path].parameters():
            if parameter.is_floating_point():
                note(path, parameter.detach())
    return {path: seen[path] for path in taps if path in seen}


def _values(x: Tensor) -> Values:
    return Values(float(x.detach().abs().max()), histogram_of(x))

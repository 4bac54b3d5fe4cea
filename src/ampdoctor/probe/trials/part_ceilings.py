"""How high a loss scale each part of a model bears, from the gradients as FP32 has them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ampdoctor.facts.floats import FLOAT_FORMATS, FloatFormat
from ampdoctor.facts.trace import Pass
from ampdoctor.load.workload import Workload
from ampdoctor.probe.passes.device import choose_device, outside_autocast
from ampdoctor.probe.passes.one_pass import run_pass
from ampdoctor.probe.passes.precision import reference
from ampdoctor.probe.passes.stages import Progress
from ampdoctor.probe.plan import Plan
from ampdoctor.probe.watch.unrecorded import Absent
from ampdoctor.scales.powers_of_two import HIGHEST_RECOMMENDED, LOWEST, ceiling_for, ceiling_of, top_below
from ampdoctor.scales.recordings import reference_tensors


def base_scale(ceiling: float | None, margin_bits: float) -> int:
    """The exponent of the loss scale beside which parts have their own: below what the whole model bears.

    ``ceiling`` is that of the whole model; None where it is below 1.
    """
    top = None if ceiling is None else top_below(int(math.log2(ceiling)), margin_bits)
    return LOWEST if top is None else min(top, HIGHEST_RECOMMENDED)


class Ceilings:
    """The highest loss scale at which nothing overflows in a part's backward, of every part of a model."""

    def __init__(self, workload: Workload, plan: Plan, passes: Sequence[Pass], progress: Progress) -> None:
        progress("gradients that come into each module, in FP32", 1, 1)
        self._tensors = reference_tensors(passes)
        self._fmt: FloatFormat = FLOAT_FORMATS[plan.dtype]
        self._coming_in = _largest_gradients(workload, plan)

    def exponent_of(self, path: str) -> int:
        """The exponent of that power of two, from the gradients as FP32 has them.

        What comes in from behind the part counts: it is rounded at the part's own scale.
        """
        inside = [t for t in self._tensors if t.site.module == path or t.site.module.startswith(f"{path}.")]
        ceilings = [ceiling_for(inside)] + [
            ceiling_of(size, self._fmt)
            for name, size in self._coming_in.items()
            if name == path or name.startswith(f"{path}.")
        ]
        return min(ceilings)

    def factor_of(self, path: str, base: int, margin_bits: float) -> float:
        """What takes the part from 2^base to the highest scale that leaves it a margin."""
        own = min(self.exponent_of(path) - math.ceil(margin_bits), HIGHEST_RECOMMENDED)
        return math.ldexp(1.0, own - base)


def _largest_gradients(workload: Workload, plan: Plan) -> dict[str, float]:
    """{module path: the largest magnitude of a gradient that comes in at its outputs}, in FP32, unscaled."""
    largest: dict[str, float] = {}
    paths = {id(module): path for path, module in workload.model.named_modules()}

    def step(model: nn.Module, batch: Any) -> Any:
        handles = [m.register_forward_hook(watch) for m in model.modules()]
        try:
            return workload.step(model, batch)
        finally:
            for handle in handles:
                handle.remove()

    def watch(module: nn.Module, args: Any, outputs: Any) -> None:
        def note(gradient: Tensor, path: str = paths[id(module)]) -> None:
            if gradient.numel():
                largest[path] = max(largest.get(path, 0.0), float(gradient.abs().max()))

        for value in tree_leaves(outputs):
            if isinstance(value, Tensor) and value.requires_grad:
                value.register_hook(note)

    device = choose_device(plan.device)
    with outside_autocast({"cpu", device.type}):
        for batch in workload.batches:
            run_pass(replace(workload, step=step), batch, reference(device), plan.seed, Absent)
    return largest

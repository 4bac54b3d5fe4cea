"""Weights and buffers that were finite until ``mode: half`` cast them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ampdoctor.facts.site import Site
from ampdoctor.probe.births.newborn import Newborn, Operand
from ampdoctor.probe.births.reference_twins import CAST
from ampdoctor.probe.watch.locator import Place
from ampdoctor.probe.watch.nonfinite import exact_counts, readable


def blame_the_cast(births: list[Newborn], model: nn.Module) -> None:
    """Nothing; an infinity in a weight or buffer that is a number in the model as built is born in a cast.

    The cast ran before anything was observed. ``model``: as its user built it, out of any working copy.
    """
    as_built = dict(_named(model))
    for birth in births:
        tensor = as_built.get((birth.origin, birth.name))
        if tensor is None or birth.value != "inf" or tensor.shape != birth.mask.shape:
            continue
        exact = readable(tensor.detach()).cpu().double()
        if not bool(torch.isfinite(exact[birth.mask]).all()):
            continue
        counts, zeros = exact_counts(exact), int((exact == 0).sum())
        dtype, module = str(tensor.dtype).removeprefix("torch."), birth.name.rpartition(".")[0]
        # Every tensor's cast is a call of its own, also of two in one module.
        nth = list(as_built).index((birth.origin, birth.name))
        birth.site, birth.place = Site("forward", module, CAST, nth), Place("forward", module, None)
        birth.exact = exact
        shape = tuple(tensor.shape)
        birth.operands = (Operand(dtype, shape, counts.absmax, zeros, counts.inf, counts.nan, None),)
        birth.name = f"{birth.origin} {birth.name}"
        birth.origin = "op"


def _named(model: nn.Module) -> Iterator[tuple[tuple[str, str], Tensor]]:
    for name, parameter in model.named_parameters():
        yield ("parameter", name), parameter
    for name, buffer in model.named_buffers():
        yield ("buffer", name), buffer

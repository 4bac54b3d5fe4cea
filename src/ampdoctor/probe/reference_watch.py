"""What the FP32 reference holds at the sites where the candidate's non-finite values were born."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ampdoctor.facts.site import Site
from ampdoctor.probe.locator import Locator, Place
from ampdoctor.probe.nonfinite import readable
from ampdoctor.probe.observer import Observer, Op, is_countable, results
from ampdoctor.probe.op_arguments import AnyOp, flat
from ampdoctor.probe.origin import Newborn

CAST = "aten::_to_copy"
"""A cast has no twin: autocast adds casts of its own, and FP32 leaves out those to what it is already."""


@dataclass(frozen=True)
class Twin:
    """What the reference holds at the site of a birth."""

    reference: str
    """``finite`` | ``same`` | ``absent``"""
    flat_index: int
    """The first born-bad element that is not bad here; else the first born bad."""
    value: float | None


class ReferenceWatch(Observer):
    """An observer of the reference pass that compares chosen sites with the births made there."""

    def __init__(self, locator: Locator, births: dict[Site, list[Newborn]]) -> None:
        super().__init__(locator, emulate=False, autocasts=False)
        self.twins: dict[int, Twin] = {}
        """id() of a birth -> what was seen at its site."""
        self._births = births

    def run(self, func: AnyOp, op: Op, place: Place, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the op returns, its watched outputs compared."""
        outputs, unrounded = self.call(func, args, kwargs)
        if op.makes_values:
            made = results(func, args, kwargs, outputs)
            sites = self.record(op, place, args, made, unrounded)
            tensors = [t for t in flat(made) if is_countable(t)]
            for site, tensor in zip(sites, tensors, strict=True):
                for birth in () if op.name == CAST else self._births.get(site, ()):
                    self._compare(birth, tensor)
        return outputs

    def _compare(self, birth: Newborn, tensor: Tensor) -> None:
        mask = birth.mask.reshape(-1)
        if mask.numel() != tensor.numel():
            return
        values = readable(tensor.detach()).reshape(-1).cpu()
        sound = mask & torch.isfinite(values)
        differs = bool(sound.any())
        index = int((sound if differs else mask).int().argmax())
        number = values[index]
        self.twins[id(birth)] = Twin(
            "finite" if differs else "same", index, None if number.is_complex() else float(number)
        )

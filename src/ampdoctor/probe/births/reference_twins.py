"""What the FP32 reference holds at the sites where the candidate's non-finite values were born."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ampdoctor.facts.site import Site
from ampdoctor.facts.words import InReference
from ampdoctor.probe.births.beside import made_beside, site_beside
from ampdoctor.probe.births.newborn import Newborn
from ampdoctor.probe.passes.precision import Precision
from ampdoctor.probe.watch.locator import Locator, Place
from ampdoctor.probe.watch.nonfinite import readable
from ampdoctor.probe.watch.observer import Observer, Op, is_countable, results
from ampdoctor.probe.watch.op_arguments import AnyOp, flat

CAST = "aten::_to_copy"
"""A cast has no twin: autocast adds casts of its own, and FP32 leaves out those to what it is already."""


@dataclass(frozen=True)
class Twin:
    """What the reference holds at the site of a birth."""

    reference: InReference
    flat_index: int
    """``telling_element`` of those born bad that are not bad here; else of all born bad."""
    value: float | None
    dtype: str
    shared: int
    """Elements born bad that are bad here too."""
    shared_at: int
    """Flat index of the first of those; 0 where there are none."""


class ReferenceWatch(Observer):
    """An observer of the reference pass that compares chosen sites with the births made there."""

    def __init__(self, locator: Locator, precision: Precision, births: dict[Site, list[Newborn]]) -> None:
        super().__init__(locator, precision)
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
            beside = made_beside(func, args, kwargs, made)
            besides = [site_beside(place, op, sites, i) for i in range(len(beside))]
            for site, tensor in zip([*sites, *besides], [*tensors, *beside], strict=True):
                for birth in () if op.name == CAST else self._births.get(site, ()):
                    self._compare(birth, tensor)
        return outputs

    watches_functions = True

    def returned(self, name: str, args: tuple[Any, ...], outputs: Any) -> None:
        """Its outputs compared."""
        first, _ = self.function_site(name)
        for i, tensor in enumerate(flat(outputs)):
            for birth in self._births.get(replace(first, output=i), ()) if is_countable(tensor) else ():
                self._compare(birth, tensor)

    def _compare(self, birth: Newborn, tensor: Tensor) -> None:
        mask = birth.mask.reshape(-1)
        if mask.numel() != tensor.numel():
            return
        values = readable(tensor.detach()).reshape(-1).cpu()
        sound = mask & torch.isfinite(values)
        differs = bool(sound.any())
        index = telling_element(birth, sound if differs else mask)
        number = values[index]
        shared = mask & ~torch.isfinite(values)
        self.twins[id(birth)] = Twin(
            "finite" if differs else "same",
            index,
            None if number.is_complex() else float(number),
            str(tensor.dtype).removeprefix("torch."),
            int(shared.sum()),
            int(shared.int().argmax()),
        )


def telling_element(birth: Newborn, among: Tensor) -> int:
    """The flat index of the element that stands for a birth: the one furthest past the format's end.

    ``among``: a flat mask of the elements to choose from. Where the first of them is infinite or NaN in
    float64 too, or was not run, there is no such thing as furthest, and the first stands for all.
    """
    first = int(among.int().argmax())
    if birth.exact is None or birth.exact.numel() != among.numel():
        return first
    sizes = birth.exact.reshape(-1).abs()
    if not bool(torch.isfinite(sizes[first])):
        return first
    return int(torch.where(among & torch.isfinite(sizes), sizes, -1.0).argmax())

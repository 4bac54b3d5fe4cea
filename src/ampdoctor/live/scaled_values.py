"""Which tensors of a script carry the loss scale still, and where a number is read from one."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

from ampdoctor.facts.words import Carrier

READS = ("item", "tolist", "__float__", "__format__", "__repr__", "__str__")
"""Calls that make a number, or text, of a tensor."""
_MOST = 4096
"""Tensors followed at once; beyond, those of steps gone by are forgotten."""
_PRODUCTS = ("mul", "multiply", "__mul__", "__rmul__", "mul_", "__imul__", "_foreach_mul", "_foreach_mul_")
_QUOTIENTS = ("div", "true_divide", "__truediv__", "div_", "__itruediv__", "_foreach_div", "_foreach_div_")


class ScaledValues:
    """Tensors that the loss scale multiplies, followed from call to call until something divides them."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Tensor], int, Carrier]] = {}

    def know(self, tensors: Iterable[Tensor], carrier: Carrier) -> None:
        """Nothing; these carry the scale, as long as nobody changes them in place."""
        if len(self._known) > _MOST:
            self._known.clear()
        for tensor in tensors:
            if tensor.is_floating_point() and not tensor.is_inference():
                self._known[id(tensor)] = (weakref.ref(tensor), tensor._version, carrier)

    def forget(self, tensors: Iterable[Tensor]) -> None:
        """Nothing; these were divided."""
        for tensor in tensors:
            self._known.pop(id(tensor), None)

    def carrier(self, tensor: Tensor) -> Carrier | None:
        """What the tensor has the scale from; None for one without it."""
        there, version, carrier = self._known.get(id(tensor), (None, 0, "loss"))
        known = there is not None and there() is tensor and tensor._version == version
        return carrier if known else None  # type: ignore[return-value]

    def called(self, name: str, args: Any, out: Any, scales: set[float]) -> Carrier | None:
        """What a number is read from in this call; None for none. Its results are followed.

        ``scales``: loss scales that the script has asked for; a product with the inverse of one, or with a
        tensor that may be one, divides.
        """
        if not self._known:
            return None
        carriers = {c for t in _tensors(args) if (c := self.carrier(t)) is not None}
        if not carriers:
            return None
        carrier: Carrier = "penalty" if "penalty" in carriers else carriers.pop()
        if name in READS:
            return carrier
        if not _divides(name, args, scales, self):
            self.know(_tensors(out), carrier)
        return None


def _divides(name: str, args: Any, scales: set[float], values: ScaledValues) -> bool:
    others = [a for a in args if not (isinstance(a, Tensor) and values.carrier(a))]
    if name in _PRODUCTS:
        numbers = {1.0 / scale for scale in scales if scale}
    elif name in _QUOTIENTS:
        numbers = scales
    else:
        return False
    return any(isinstance(a, Tensor) or (isinstance(a, float) and a in numbers) for a in others)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)

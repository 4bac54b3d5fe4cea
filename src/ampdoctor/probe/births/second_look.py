"""The second look: where each non-finite value was born, and what it went through.

The pass is run again with every op's inputs and outputs looked at. A value is *born* where an op makes it
from inputs that carry none of its kind; from there it is followed by the storage it lies in, through views
and in-place writes, until it reaches the loss, a gradient, or an op that takes it in and gives finite values.
At a birth the op is run once more on the same inputs in float64, for the value it should have had.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload

from ampdoctor.facts.site import Site
from ampdoctor.facts.trace import Step
from ampdoctor.facts.words import Origin, Outcome, Value
from ampdoctor.load.seeds import Drawn, states
from ampdoctor.probe.births.beside import made_beside, site_beside
from ampdoctor.probe.births.newborn import Cast, Given, Newborn, Operand
from ampdoctor.probe.births.rerun import generators, rerun_in_float64, written_copied
from ampdoctor.probe.passes.isolation import named_tensors
from ampdoctor.probe.passes.precision import Precision
from ampdoctor.probe.watch.location import source_of
from ampdoctor.probe.watch.locator import Locator, Place
from ampdoctor.probe.watch.nonfinite import Exact, broadcasts, elements, exact_counts, has_nonfinite, readable
from ampdoctor.probe.watch.observer import Observer, Op, Unrounded, is_countable, results
from ampdoctor.probe.watch.op_arguments import AnyOp, flat, largest_scalar, smallest_scalar
from ampdoctor.probe.watch.storage_map import StorageMap

_MAX_BIRTHS = 200
"""Births kept of one pass; a model that makes more has one cause many times over."""
_PATH_ENDS = 12
"""Steps kept from each end of a path."""


class SecondLook(Observer):
    """An observer that also follows non-finite values from birth to loss or gradient."""

    def __init__(self, locator: Locator, precision: Precision) -> None:
        super().__init__(locator, precision)
        self.births: list[Newborn] = []
        self.exact: dict[Site, Exact] = {}
        self.truncated = False
        self.casts: dict[int, Cast] = {}
        """Order of an op that rounded nonzero values to zero."""
        self.sites: dict[int, list[Site]] = {}
        """Order of an op -> the sites of its outputs."""
        self.places: dict[int, Place] = {}
        """Order of an op -> its place."""
        self.zeros: dict[Site, int] = {}
        """Zeros at each site that has some."""
        self.constants: dict[int, float] = {}
        """Order of an op -> the smallest nonzero number among its arguments: an eps, where it adds one."""
        self.inputs_of: dict[int, tuple[int, ...]] = {}
        """Order of an op -> orders of the ops that made its inputs."""
        self._known: StorageMap[frozenset[int]] = StorageMap()
        """The births whose value lies in a storage; empty: it is all finite."""
        self._maker: StorageMap[Step] = StorageMap()
        self._declared: dict[str, int] = {}
        self._born_at: dict[int, list[int]] = {}
        """Order of an op -> births in its outputs."""
        self._unviewed: StorageMap[Newborn] = StorageMap()
        """A birth whose shape no view has shown yet."""

    # -- what the pass tells it

    def begin(self, model: nn.Module, data: Any) -> None:
        """The weights, buffers and batch: what is not finite in them came in with them."""
        super().begin(model, data)
        for name, parameter in model.named_parameters():
            self.know("parameter", name, parameter.detach())
        for name, tensor in model.named_buffers():
            self.know("buffer", name, tensor)
        for name, tensor in named_tensors(data):
            self.know("batch", name, tensor.detach())

    def end(self, model: nn.Module, results: Iterable[Tensor]) -> None:
        """Marks the births that the results and the gradients hold."""
        super().end(model, results)
        for result in results:
            for number in self.births_in(result):
                self.births[number].reaches_loss = True
        for name, parameter in model.named_parameters():
            for number in () if parameter.grad is None else self.births_in(parameter.grad):
                self.births[number].reaches_gradients.append(name)
        for name, buffer in model.named_buffers():
            for number in self.births_in(buffer):
                if self.births[number].origin == "op":
                    self.births[number].reaches_buffers.append(name)

    def know(self, origin: Origin, name: str, tensor: Tensor) -> None:
        """Registers a tensor that the model starts from; a non-finite one becomes an origin of its own."""
        tensor = elements(tensor)
        if not is_countable(tensor):
            return
        births: frozenset[int] = frozenset()
        if has_nonfinite(tensor):
            value, mask = _what_is_bad(tensor)
            births = frozenset((self._add(origin, value, tensor, mask, name).id,))
        self._known.put(tensor, births)

    def births_in(self, tensor: Tensor) -> frozenset[int]:
        """The births whose values a non-finite tensor holds."""
        tensor = elements(tensor)
        return self._taint(tensor) if is_countable(tensor) and has_nonfinite(tensor) else frozenset()

    # -- every op

    def run(self, func: AnyOp, op: Op, place: Place, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the op returns, with the non-finite values in it traced to their births."""
        order = self.order - 1
        before = (args, kwargs)
        if op.mutates and isinstance(func, OpOverload):
            before = written_copied(func, args, kwargs)
        given = self._given((args, kwargs), before)
        bad = [g for g in given if g.births]
        drawn = states(generators(func, args, kwargs))
        outputs, unrounded = self.call(func, args, kwargs)
        made = results(func, args, kwargs, outputs)
        tensors = [t for t in flat(made) if is_countable(t)]
        if not op.makes_values:
            for t in tensors:
                self._follow_view(t)
                if op.name.startswith(("aten::empty", "aten::new_empty", "aten::resize")):
                    self._known.put(t, frozenset())
            return outputs
        makers = [m for g in given if (m := self._maker.get(g.tensor)) is not None]
        self.sites[order] = sites = self.record(op, place, args, made, unrounded)
        self.places[order] = place
        self.inputs_of[order] = tuple(dict.fromkeys(m.order for m in makers))
        constant = smallest_scalar(args, kwargs)
        if constant is not None:
            self.constants[order] = constant
        self._note_zeros(order, place, sites, tensors, unrounded, makers)
        arrived = frozenset(i for g in bad for i in g.births)
        absorbed = bool(tensors)
        for tensor, site in zip(tensors, sites, strict=True):
            step = self._step(place, op, order, "finite")
            ids: frozenset[int] = frozenset()
            if has_nonfinite(tensor):
                absorbed = False
                born, ids = self._explain(func, op, place, order, site, tensor, before, given, drawn)
                step = self._step(place, op, order, _what_is_bad(tensor)[0])
                for number in ids - {b.id for b in born}:
                    _extend(self.births[number].path, step)
                self.exact[site] = exact_counts(tensor)
            self._settle(tensor, op, ids)
            self._maker.put(tensor, step)
            arrived |= ids
        for t in flat(outputs):
            if is_countable(t) and not any(t is counted for counted in tensors):
                self._known.put(t, frozenset())  # memory that the op never fills
        for i, t in enumerate(made_beside(func, args, kwargs, made)):
            ids = arrived if has_nonfinite(t) else frozenset()
            if has_nonfinite(t) and not arrived:
                site = site_beside(place, op, sites, i)
                ids = self._explain(func, op, place, order, site, t, before, given, drawn)[1]
            self._settle(t, op, ids)
        if absorbed:
            for number in arrived:
                self.births[number].absorbed_at = self._step(place, op, order, "finite")
        return outputs

    def _given(self, arguments: Any, before: Any) -> list[Given]:
        """What goes into an op, of the arguments that can hold a non-finite value."""
        given = []
        for argument, values in zip(flat(arguments), flat(before), strict=True):
            if not isinstance(argument, Tensor) or not is_countable(elements(argument)):
                continue
            tensor, values = elements(argument), readable(elements(values))
            births = self._taint(tensor)
            given.append(Given(tensor, values, births if births and has_nonfinite(values) else frozenset()))
        return given

    # -- what no op made

    watches_functions = True

    def returned(self, name: str, args: tuple[Any, ...], outputs: Any) -> None:
        """Memory that no op filled, and what is not finite in it: born here, if it did not come in."""
        first, place = self.function_site(name)
        tensors = [a for a in flat(args) if isinstance(a, Tensor)]
        arrived = frozenset(i for t in tensors for i in self.births_in(t))
        for i, tensor in enumerate(flat(outputs)):
            if not is_countable(tensor) or not has_nonfinite(tensor):
                continue
            unexplained = [b for n in self._taint(tensor) if (b := self.births[n]).came_from_nowhere]
            for birth in unexplained[:1]:
                if arrived:
                    self._known.put(tensor, arrived)
                    continue
                birth.origin = "op"
                birth.order, birth.site, birth.place = self.order, replace(first, output=i), place

    # -- one non-finite output

    def _explain(
        self, func: AnyOp, op: Op, place: Place, order: int, site: Site, out: Tensor,
        arguments: tuple[tuple[Any, ...], dict[str, Any]], given: list[Given], drawn: Drawn,
    ) -> tuple[list[Newborn], frozenset[int]]:  # fmt: skip
        """(births in this output, all births whose values it holds)."""
        bad = [g for g in given if g.births]
        by_element = isinstance(func, OpOverload) and torch.Tag.pointwise in func.tags
        by_element = by_element and all(broadcasts(g.values, out) for g in bad)
        same = frozenset(self._born_at.get(place.forward_order, ()))
        arrived = frozenset(i for g in bad for i in g.births)
        born: list[Newborn] = []
        for value, mask in _new_elements(op, readable(out), bad, by_element):
            scalars = [v for v in flat(arguments) if isinstance(v, float) and not math.isfinite(v)]
            if scalars and not (value == "nan" and all(math.isinf(v) for v in scalars)):
                arrived |= {self._declare(place, order, out, mask, value)}
                continue
            if same and not (by_element and all(_lies_apart(self.births[i].mask, mask) for i in same)):
                # The gradient of an op that made an infinity is that fault again, whatever its formula reads.
                arrived |= same
                continue
            parents = frozenset() if value == "inf" else _parents(mask, bad, by_element)
            if value == "nan" and any(self.births[p].origin == "op" for p in parents):
                continue  # an infinity that was born earlier turns into NaN here: one fault, not two
            if len(self.births) >= _MAX_BIRTHS:
                self.truncated = True
                continue
            birth = self._add("op", value, out, mask, "")
            birth.order, birth.site, birth.place = order, site, place
            birth.implicit_cast = self.is_implicit_cast(op, place)
            birth.exact = rerun_in_float64(func, *arguments, site.output, drawn)
            bad_inside = (~torch.isfinite(readable(t)) for t in self.stored)
            birth.inside = next((m.cpu() for m in bad_inside if bool(m.any())), None)
            birth.operands = tuple(self._operand(g) for g in given)
            if op.name in _OF_ONE_ARGUMENT and given and given[0].values.shape == out.shape:
                birth.argument = given[0].values.detach().cpu()
            birth.constant = largest_scalar(*arguments)
            birth.parents = tuple(sorted(parents))
            self._born_at.setdefault(order, []).append(birth.id)
            self._unviewed.put(out, birth)
            born.append(birth)
        return born, arrived | {b.id for b in born}

    def _declare(self, place: Place, order: int, out: Tensor, mask: Tensor, value: Value) -> int:
        """The declared infinity (or NaN) of this line, which its scalar argument names."""
        source = source_of(place.line)
        key = f"{source.file}:{source.line}" if source else f"op {order}"
        if key not in self._declared:
            birth = self._add("declared", value, out, mask, "")
            birth.order, birth.place = order, place
            self._declared[key] = birth.id
        return self._declared[key]

    def _add(self, origin: Origin, value: Value, tensor: Tensor, mask: Tensor, name: str) -> Newborn:
        birth = Newborn(
            len(self.births), origin, value, str(tensor.dtype).removeprefix("torch."), -1, None, None, False,
            name, mask.detach().cpu(), None,
        )  # fmt: skip
        self.births.append(birth)
        return birth

    # -- storages

    def _taint(self, tensor: Tensor) -> frozenset[int]:
        """The births known in the tensor's storage. One never seen is looked at: what is bad in it, and was
        made by no op, was written there by the user's code."""
        if self._known.get(tensor) is None:
            self.know("declared", "", tensor)
        return self._known.get(tensor) or frozenset()

    def _settle(self, out: Tensor, op: Op, births: frozenset[int]) -> None:
        """Records what the storage of an output holds now; a write into a part of it leaves the rest."""
        if op.mutates and out.numel() * out.element_size() < out.untyped_storage().nbytes():
            births = births | (self._known.get(out) or frozenset())
        self._known.put(out, births)

    def _follow_view(self, view: Tensor) -> None:
        """The first view that adds dimensions to a birth's tensor shows the element as the user sees it."""
        birth = self._unviewed.get(view)
        if birth is None:
            return
        if birth.mask.numel() == view.numel() and view.dim() > birth.mask.dim() and view.is_contiguous():
            birth.mask = birth.mask.reshape(view.shape)
            if birth.exact is not None and birth.exact.numel() == view.numel():
                birth.exact = birth.exact.reshape(view.shape)
            self._unviewed.drop(view)

    def _note_zeros(
        self, order: int, place: Place, sites: list[Site], tensors: list[Tensor],
        unrounded: Unrounded, makers: list[Step],
    ) -> None:  # fmt: skip
        for site, tensor in zip(sites, tensors, strict=True):
            zeros = tensor.numel() - int(torch.count_nonzero(readable(tensor)))
            if zeros:
                self.zeros[site] = zeros
            exact = unrounded.get(id(tensor))
            if exact is not None and exact.shape == tensor.shape:
                flushed = int(((tensor == 0) & (exact != 0)).sum())
                if flushed:
                    self.casts[order] = Cast(site, place, flushed, makers[0] if makers else None)

    # -- small facts

    def _operand(self, given: Given) -> Operand:
        t, exact = given.tensor, exact_counts(given.values)
        return Operand(
            str(t.dtype).removeprefix("torch."), tuple(t.shape), exact.absmax,
            int((given.values == 0).sum()), exact.inf, exact.nan, self._maker.get(t),
        )  # fmt: skip

    def _step(self, place: Place, op: Op, order: int, value: Outcome) -> Step:
        return Step(place.phase, place.module, op.name, source_of(place.line), value, order)


_OF_ONE_ARGUMENT = frozenset(
    f"aten::{name}"
    for name in (
        "sqrt", "rsqrt", "log", "log2", "log10", "log1p", "pow", "exp", "exp2", "expm1", "acos", "asin",
        "acosh", "atanh", "reciprocal",
    )
)  # fmt: skip
"""Ops whose result at an element depends on one number: that number says what went wrong."""
_MOVES_VALUES = frozenset(
    f"aten::{name}"
    for name in (
        "cat", "stack", "index", "index_put", "index_put_", "gather", "embedding", "copy_", "clone",
        "_to_copy", "slice_scatter", "select_scatter", "repeat", "constant_pad_nd", "index_select", "roll",
        "flip",
    )
)  # fmt: skip
"""Ops that only move elements: a NaN in their output came in, even where its input was not seen."""


def _what_is_bad(tensor: Tensor) -> tuple[Value, Tensor]:
    """``nan`` where there is one, else ``inf``; and which elements are."""
    values = readable(tensor)
    nan = torch.isnan(values)
    return ("nan", nan) if bool(nan.any()) else ("inf", torch.isinf(values))


def _new_elements(op: Op, out: Tensor, bad: list[Given], by_element: bool) -> list[tuple[Value, Tensor]]:
    """[(kind, mask)] of the elements whose kind no input of theirs carries."""
    nan, inf = torch.isnan(out), torch.isinf(out)
    if not bad:
        kind, mask = _what_is_bad(out)
        # 0/0 next to 1/0 in one op is one fault: the NaNs name it, the infinities come with it.
        return [(kind, mask | inf if kind == "nan" else mask)]
    if by_element:
        had_nan, had_any = torch.zeros_like(nan), torch.zeros_like(nan)
        for g in bad:
            had_nan |= torch.isnan(g.values)
            had_any |= ~torch.isfinite(g.values)
        new: tuple[tuple[Value, Tensor], ...] = (("nan", nan & ~had_nan), ("inf", inf & ~had_any))
        return [(kind, mask) for kind, mask in new if bool(mask.any())]
    carried = op.name in _MOVES_VALUES or any(bool(torch.isnan(g.values).any()) for g in bad)
    return [] if carried or not bool(nan.any()) else [("nan", nan)]


def _lies_apart(mask: Tensor, other: Tensor) -> bool:
    """True for masks of one shape with no element in common."""
    return mask.shape == other.shape and not bool((mask & other.to(mask.device)).any())


def _parents(mask: Tensor, bad: list[Given], by_element: bool) -> frozenset[int]:
    """The births whose infinities can have made these NaNs."""
    return frozenset(
        birth
        for g in bad
        if not by_element or bool((~torch.isfinite(g.values) & mask).any())
        for birth in g.births
    )


def _extend(path: list[Step], step: Step) -> None:
    """Adds a step, in place of the middle of a path that has grown long; a module's repeats count once."""
    if path and (path[-1].module, path[-1].op, path[-1].phase) == (step.module, step.op, step.phase):
        return
    path.append(step)
    if len(path) > 2 * _PATH_ENDS:
        del path[_PATH_ENDS]

"""The second look's births, completed with what the reference holds at the same sites, as facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ampdoctor.facts.site import Site
from ampdoctor.facts.trace import Birth, OperandFact, Pass, SiteRecord, ZeroOrigin
from ampdoctor.facts.words import Rerun
from ampdoctor.probe.births.newborn import Newborn
from ampdoctor.probe.births.reference_twins import CAST, Twin, telling_element
from ampdoctor.probe.births.second_look import SecondLook
from ampdoctor.probe.watch.location import source_of


@dataclass(frozen=True)
class Seen:
    """One second look and what it was a look at."""

    look: SecondLook
    batch: int
    batch_size: int | None
    loss_scale: float
    births: Sequence[Newborn]
    """Those of the look's births to report."""


def describe_births(seen: Sequence[Seen], twins: dict[int, Twin], reference: Pass | None) -> list[Birth]:
    """Facts of all births of one batch, numbered from 0 in the order given. ``twins`` is keyed by id()."""
    numbers = {id(birth): n for n, birth in enumerate(b for s in seen for b in s.births)}
    sites = {r.site: r for r in reference.sites} if reference is not None else {}
    facts = []
    for item in seen:
        for birth in item.births:
            facts.append(_fact(birth, item, numbers, twins.get(id(birth)), sites))
    return facts


def _fact(
    birth: Newborn, seen: Seen, numbers: dict[int, int], twin: Twin | None, sites: dict[Site, SiteRecord]
) -> Birth:
    shape = tuple(birth.mask.shape)
    where = twin.flat_index if twin is not None else telling_element(birth, birth.mask.reshape(-1))
    index = _unraveled(where, shape)
    exact, rerun = _exact_at(birth, where)
    place = birth.place
    chain = _zero_chain(birth, seen.look, sites) if birth.origin == "op" else ()
    return Birth(
        id=numbers[id(birth)],
        origin=birth.origin,
        batch=seen.batch,
        loss_scale=seen.loss_scale,
        value=birth.value,
        dtype=birth.dtype,
        order=birth.order,
        site=birth.site,
        source=source_of(place.line) if place is not None else None,
        backward_source=source_of(place.backward_line) if place is not None else None,
        forward_op=place.forward_op if place is not None else "",
        implicit_cast=birth.implicit_cast,
        name=birth.name,
        shape=shape,
        index=index,
        count=int(birth.mask.sum()),
        samples=_samples(birth, seen.batch_size),
        exact_value=exact,
        rerun=rerun,
        reference=twin.reference if twin is not None else "absent",
        reference_value=twin.value if twin is not None else None,
        operands=tuple(OperandFact(**vars(o)) for o in birth.operands),
        constant=birth.constant,
        zero_origin=chain[-1] if chain else None,
        parents=tuple(numbers[id(b)] for p in birth.parents if id(b := seen.look.births[p]) in numbers),
        reaches_loss=birth.reaches_loss,
        reaches_gradients=tuple(birth.reaches_gradients),
        reaches_buffers=tuple(birth.reaches_buffers),
        path=tuple(birth.path),
        absorbed_at=None if birth.reaches_loss or birth.reaches_gradients else birth.absorbed_at,
        reference_dtype=twin.dtype if twin is not None else "",
        shared=twin.shared if twin is not None else 0,
        shared_index=_unraveled(twin.shared_at, shape) if twin is not None and twin.shared else (),
        argument=_argument_at(birth, where),
        zero_chain=chain,
    )


def _unraveled(where: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(where), shape)) if shape else ()


def _argument_at(birth: Newborn, where: int) -> float | None:
    if birth.argument is None or birth.argument.is_complex() or birth.argument.numel() != birth.mask.numel():
        return None
    return float(birth.argument.reshape(-1)[where])


def _exact_at(birth: Newborn, where: int) -> tuple[float | None, Rerun]:
    if birth.exact is None or birth.exact.numel() != birth.mask.numel():
        return None, "not-run"
    value = birth.exact.reshape(-1)[where]
    number = abs(complex(value.item())) if value.is_complex() else float(value)
    if torch.isnan(value):
        return number, "nan"
    return number, "inf" if torch.isinf(value) else "finite"


def _samples(birth: Newborn, batch_size: int | None) -> tuple[int, ...] | None:
    """The samples of the elements born bad, where the first dimension counts samples."""
    mask = birth.mask if birth.inside is None else birth.inside
    if batch_size is None or not mask.shape or mask.shape[0] != batch_size:
        return None
    rows = mask.reshape(batch_size, -1).any(1)
    return tuple(int(i) for i in torch.nonzero(rows).flatten())


_DIVISIONS = ("aten::div", "aten::div_")


def _zero_chain(birth: Newborn, look: SecondLook, sites: dict[Site, SiteRecord]) -> tuple[ZeroOrigin, ...]:
    """The ops that made the zeros among the birth's operands, nearest first, each with zeros that the
    reference does not have: the last is where they began. () for a birth that no zero can have caused."""
    operands = birth.operands
    if birth.site is not None and birth.site.op in _DIVISIONS and len(operands) == 2:
        operands = operands[1:]  # 0 / x is no fault, whatever made the 0
    zeros = [o for o in operands if o.zeros]
    if not zeros:
        return ()
    makers = [o.made_by.order for o in zeros if o.made_by is not None]
    found: list[tuple[int, ZeroOrigin]] = []
    frontier = makers or list(look.inputs_of.get(birth.order, ()))
    seen: set[int] = set()
    while frontier:
        order = frontier.pop(0)
        if order in seen:
            continue
        seen.add(order)
        zero = _excess_zeros(order, look, sites)
        if zero is not None:
            found.append((order, zero))
            frontier += look.inputs_of.get(order, ())
        elif any(s.op == CAST and s in look.zeros for s in look.sites.get(order, ())):
            frontier += look.inputs_of.get(order, ())  # a cast that only carries zeros on
    return tuple(zero for _, zero in sorted(found, key=lambda f: -f[0]))


def _excess_zeros(order: int, look: SecondLook, sites: dict[Site, SiteRecord]) -> ZeroOrigin | None:
    """The zeros that an op made and the reference does not have; None if there are none."""
    source = source_of(look.places[order].line)
    for site in look.sites.get(order, ()):
        twin = None if site.op == CAST else sites.get(site)
        expected = twin.stats.zeros if twin is not None else None
        if twin is not None and expected is not None and look.zeros.get(site, 0) > expected:
            excess = look.zeros[site] - expected
            return ZeroOrigin(site, source, excess, twin.stats.absmax, None, look.constants.get(order))
    cast = look.casts.get(order)
    if cast is not None and (cast.site.op == CAST or cast.site not in sites):
        return ZeroOrigin(cast.site, source, cast.flushed, None, cast.maker)
    return None

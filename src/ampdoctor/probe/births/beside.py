"""Memory that an op fills beside its dense outputs, and the sites of what lies there."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ampdoctor.facts.site import Site
from ampdoctor.probe.watch.locator import Place
from ampdoctor.probe.watch.nonfinite import elements
from ampdoctor.probe.watch.observer import Op, is_countable
from ampdoctor.probe.watch.op_arguments import AnyOp, flat, written


def made_beside(func: AnyOp, args: tuple[Any, ...], kwargs: dict[str, Any], made: Any) -> list[Tensor]:
    """Memory an op filled that no dense output shows: running statistics, a sparse output's values."""
    sparse = [elements(t) for t in flat(made) if isinstance(t, Tensor) and elements(t) is not t]
    shown = {t.untyped_storage()._cdata for t in flat(made) if is_countable(t)}
    beside = [t for t in written(func, args, kwargs) if is_countable(t)]
    return [
        *(t for t in sparse if is_countable(t)),
        *(t for t in beside if t.untyped_storage()._cdata not in shown),
    ]


def site_beside(place: Place, op: Op, sites: list[Site], index: int) -> Site:
    """The site of the ``index``-th tensor that an op made beside the outputs that have ``sites``."""
    nth = sites[0].nth if sites else 0
    return Site(place.phase, place.module, op.name, nth, len(sites) + index)

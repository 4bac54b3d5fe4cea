"""Sums that CUDA makes with atomic additions: every addition rounds, one after another.

Where many values go to one element, a sum in half stops growing (at 2,048, where ones are counted) or runs
over on its way. The order on a GPU changes from run to run; here it is the order of the index.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ampdoctor.probe.cuda.stored_value import Stored

_MOST = 2**14
"""Additions to one element that are followed one by one: each takes 30 to 100 microseconds."""


def _added(store: Stored, rows: Tensor, places: Tensor, values: Tensor) -> Tensor:
    """``rows`` (n, k) with each row of ``values`` (m, k) added to the row that ``places`` (m) says, before
    the last rounding of each. The most-called rows come first, so that a turn adds to the first of them."""
    if bool(((places < 0) | (places >= len(rows))).any()):
        raise IndexError("index out of range")
    called, which, counts = places.unique(return_inverse=True, return_counts=True)
    by_count = counts.argsort(descending=True, stable=True)
    grouped = which.argsort(stable=True)
    turn = torch.empty_like(which)
    turn[grouped] = torch.arange(len(which)) - (counts.cumsum(0) - counts)[which[grouped]]
    sizes = torch.bincount(turn)
    if len(sizes) > _MOST:
        raise OverflowError(f"{len(sizes)} additions to one element")
    in_turn = torch.empty_like(values)
    in_turn[(sizes.cumsum(0) - sizes)[turn] + by_count.argsort()[which]] = values
    called = called[by_count]
    total = rows[called]
    for added in in_turn.split(sizes.tolist()):
        first = total[: len(added)]
        torch.add(first.to(store.dtype), added, out=first)
    return rows.index_copy(0, called, total)


def _scattered(store: Stored, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """``x`` with the elements of ``source`` added where ``index`` says along ``dim``."""
    if not x.ndim:
        x, index, source = x[None], index.reshape(-1), source.reshape(-1)
        return _scattered(store, x, 0, index, source)[0]
    lines = x.movedim(dim, 0)
    index = index.movedim(dim, 0)
    source = source.movedim(dim, 0)[tuple(slice(size) for size in index.shape)]
    if bool(((index < 0) | (index >= len(lines))).any()):
        raise IndexError("index out of range")
    within = torch.arange(lines[0].numel()).reshape(lines.shape[1:])
    places = index * lines[0].numel() + within[tuple(slice(size) for size in index.shape[1:])]
    total = _added(store, lines.reshape(-1, 1), places.reshape(-1), source.reshape(-1, 1))
    return total.reshape(lines.shape).movedim(0, dim)


def scatter_add(store: Stored, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """``ReduceAdd`` in cuda/ScatterGatherKernel.cu: ``fastAtomicAdd`` in scalar_t."""
    return _scattered(store, x, dim, index, source)


def index_add(store: Stored, x: Tensor, dim: int, index: Tensor, source: Tensor, alpha: float = 1) -> Tensor:
    """``index_add_cuda_impl`` in cuda/Indexing.cu: atomic additions of ``source * alpha``, in scalar_t."""
    source = source if alpha == 1 else store(source * alpha)
    if not x.ndim:
        return _scattered(store, x, 0, index, source)
    lines = x.movedim(dim, 0)
    values = source.movedim(dim, 0).reshape(index.numel(), -1)
    total = _added(store, lines.reshape(len(lines), -1), index.reshape(-1), values)
    return total.reshape(lines.shape).movedim(0, dim)


def scatter_reduce(
    store: Stored, x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool = True
) -> Tensor:
    """``scatter_reduce_two`` in TensorAdvancedIndexing.cpp: a mean is a sum and a count, both in half."""
    if reduce not in ("sum", "mean"):
        return x.scatter_reduce(dim, index, source, reduce, include_self=include_self)
    total = _scattered(store, x if include_self else x.scatter(dim, index, 0.0), dim, index, source)
    if reduce == "sum":
        return total
    count = torch.ones_like(x) if include_self else torch.zeros_like(x)
    count = store(_scattered(store, count, dim, index, torch.ones_like(source)))
    return store(total) / count.masked_fill(count == 0, 1)

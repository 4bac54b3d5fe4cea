"""What is NaN or inf before anything runs: weights, buffers, batches."""

from __future__ import annotations

import collections
from typing import Any

import torch
from torch import Tensor, nn

from ampdoctor.facts.trace import BadTensor
from ampdoctor.facts.words import TensorKind
from ampdoctor.probe.passes.isolation import named_tensors
from ampdoctor.probe.watch.nonfinite import has_nonfinite, readable
from ampdoctor.probe.watch.observer import is_countable


def bad_tensors(model: nn.Module, batches: tuple[Any, ...]) -> list[BadTensor]:
    """One entry per parameter, buffer and batch tensor that holds NaN or inf."""
    found = []
    for name, parameter in model.named_parameters():
        found += _bad_tensor("parameter", name, None, parameter.detach(), None)
    for name, buffer in model.named_buffers():
        found += _bad_tensor("buffer", name, None, buffer.detach(), None)
    for index, batch in enumerate(batches):
        size = batch_size(batch)
        for name, tensor in named_tensors(batch):
            found += _bad_tensor("batch", name, index, tensor.detach(), size)
    return found


def _bad_tensor(
    kind: TensorKind, name: str, batch: int | None, tensor: Tensor, samples_in_batch: int | None
) -> list[BadTensor]:
    if not is_countable(tensor) or not has_nonfinite(tensor):
        return []
    dtype, tensor = tensor.dtype, readable(tensor)
    bad = ~torch.isfinite(tensor)
    first = torch.nonzero(bad)[0] if bad.dim() else torch.zeros(0, dtype=torch.long)
    by_sample = bad.dim() > 0 and bad.shape[0] == samples_in_batch
    samples = torch.nonzero(bad.reshape(bad.shape[0], -1).any(1)).flatten().tolist() if by_sample else None
    return [
        BadTensor(
            kind, name, batch, str(dtype).removeprefix("torch."), tuple(tensor.shape),
            int(torch.isnan(tensor).sum()), int(torch.isinf(tensor).sum()),
            tuple(int(i) for i in first), None if samples is None else tuple(samples),
        )
    ]  # fmt: skip


def batch_size(batch: Any) -> int | None:
    """The first dimension that most of the batch's tensors share; None if no two of several agree."""
    sizes = collections.Counter(
        t.shape[0] for _, t in named_tensors(batch) if t.dim() > 0 and not t.is_nested
    )
    if not sizes:
        return None
    size, count = sizes.most_common(1)[0]
    return size if count > 1 or len(sizes) == 1 else None

"""What a pass leaves in the model's buffers: the state that the next step starts from."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ampdoctor.facts.trace import BufferState


def floating_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Copies of the dense floating-point buffers as they are."""
    return {
        name: buffer.detach().clone()
        for name, buffer in model.named_buffers()
        if buffer.is_floating_point() and buffer.layout == torch.strided
    }


def written_buffers(after: dict[str, Tensor], before: dict[str, Tensor]) -> frozenset[str]:
    """Those that differ from what they were. By value: batch norm's kernels write to the running statistics
    without counting it as a write."""
    return frozenset(
        name for name, buffer in after.items() if name not in before or not _same(buffer, before[name])
    )


def compare_buffers(
    buffers: dict[str, Tensor], reference: dict[str, Tensor], written: frozenset[str]
) -> tuple[BufferState, ...]:
    """One entry for each of the ``written`` that both passes have, in the order of the model."""
    return tuple(
        _compare(name, buffer, reference[name], _spread(name, reference))
        for name, buffer in buffers.items()
        if name in written and name in reference and reference[name].shape == buffer.shape
    )


def _spread(name: str, reference: dict[str, Tensor]) -> float:
    """Of a running mean the norm of the standard deviations that stand beside it, by which evaluation divides
    its error; 0 for other buffers. A mean near zero is far off by itself, and harms nothing so."""
    if name.rpartition(".")[2] != "running_mean":
        return 0.0
    variance = reference.get(name.removesuffix("mean") + "var")
    return 0.0 if variance is None else float(torch.linalg.vector_norm(variance.double().clamp(min=0).sqrt()))


def _compare(name: str, buffer: Tensor, exact: Tensor, spread: float) -> BufferState:
    ours, theirs = buffer.double(), exact.double()
    bad = ~torch.isfinite(ours)
    error = None
    if not bool(bad.any()) and bool(torch.isfinite(theirs).all()):
        size = max(float(torch.linalg.vector_norm(theirs)), spread)
        error = float(torch.linalg.vector_norm(ours - theirs)) / size if size else None
    return BufferState(
        name=name,
        numel=buffer.numel(),
        dtype=str(buffer.dtype).removeprefix("torch."),
        nonfinite=int(bad.sum()),
        nonfinite_here_only=int((bad & torch.isfinite(theirs)).sum()),
        relative_error=error,
    )


def _same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num())

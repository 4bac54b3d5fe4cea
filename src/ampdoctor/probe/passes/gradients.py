"""How far a pass's gradients and outputs are from the reference's, in numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ampdoctor.facts.trace import ParameterGradient
from ampdoctor.probe.watch.exponents import in_storage_order

_PIECE = 1 << 16
"""Elements compared at a time on a CPU: in float64 half a MiB, which stays in cache between the sums."""
_PIECE_ON_DEVICE = 1 << 26
"""The same on a GPU, where it only bounds the scratch (512 MiB)."""


def compare_gradients(
    gradients: dict[str, Tensor], loss_scale: float, reference: dict[str, Tensor]
) -> tuple[ParameterGradient, ...]:
    """One entry per parameter that has a gradient in either pass; ``gradients`` are still scaled."""
    names = dict.fromkeys([*reference, *gradients])
    return tuple(_compare(name, gradients.get(name), loss_scale, reference.get(name)) for name in names)


def output_error(outputs: Sequence[Tensor], reference: Sequence[Tensor]) -> float | None:
    """|y - y_ref| / |y_ref| of the floating-point outputs taken together, in the 2-norm.

    None where there are none, where they do not pair by shape, and where one of them is not finite.
    """
    ours = [_wide(y) for y in outputs if y.is_floating_point() or y.is_complex()]
    theirs = [_wide(y) for y in reference if y.is_floating_point() or y.is_complex()]
    if not ours or [y.shape for y in ours] != [y.shape for y in theirs]:
        return None
    size = math.hypot(*(_norm(y) for y in theirs))
    error = math.hypot(*(_norm(a - b) for a, b in zip(ours, theirs, strict=True)))
    return error / size if size > 0 and math.isfinite(size) and math.isfinite(error) else None


def _compare(name: str, scaled: Tensor | None, scale: float, exact: Tensor | None) -> ParameterGradient:
    present = scaled if scaled is not None else exact
    assert present is not None
    # Without a gradient here the parameter took part in FP32 only; it got nothing.
    ours, theirs = _Side(), _Side()
    lost, product, difference = 0, 0.0, 0.0
    for piece, twin in _pieces(torch.zeros_like(present) if scaled is None else scaled, exact):
        unscaled = _wide(piece)
        unscaled = unscaled if scale == 1 else unscaled / scale
        wide = ours.add(unscaled)
        if twin is None:
            continue
        expected = _wide(twin)
        wide_twin = theirs.add(expected)
        if ours.zeros:
            lost += int(((expected != 0) & (unscaled == 0)).sum())
        if wide is not None and wide_twin is not None:
            product += float(wide.dot(wide_twin))
            difference += float(wide.sub_(wide_twin).square_().sum())
    known = exact is not None and theirs.is_finite
    reference_norm = math.sqrt(theirs.squares) if known else None
    relative_error = cosine = None
    if reference_norm and ours.is_finite:
        relative_error = math.sqrt(difference) / reference_norm
        if ours.squares > 0:
            cosine = max(-1.0, min(1.0, product / (math.sqrt(ours.squares) * reference_norm)))
    return ParameterGradient(
        name,
        ours.numel,
        str(present.dtype).removeprefix("torch."),
        ours.absmax,
        ours.nan,
        ours.inf,
        ours.zeros,
        theirs.absmax if known else None,
        theirs.numel - theirs.zeros if known else None,
        lost if known else None,
        relative_error,
        cosine,
        reference_norm,
    )


class _Side:
    """What is counted of one gradient, piece by piece."""

    def __init__(self) -> None:
        self.numel = self.zeros = self.nan = self.inf = 0
        self.absmax: float | None = None
        """Of the finite elements."""
        self.squares = 0.0
        """The sum of the squares, where all is finite."""

    @property
    def is_finite(self) -> bool:
        return self.nan == self.inf == 0

    def add(self, piece: Tensor) -> Tensor | None:
        """The piece in float64, a copy; None where one of its elements is not finite."""
        self.numel += piece.numel()
        self.zeros += piece.numel() - int(torch.count_nonzero(piece))
        low, high = torch.aminmax(piece)
        largest = float(torch.maximum(high, -low))
        if not math.isfinite(largest):
            self.nan += int(torch.isnan(piece).sum())
            self.inf += int(torch.isinf(piece).sum())
            finite = piece[torch.isfinite(piece)]
            if finite.numel():
                self._reach(float(finite.abs().max()))
            return None
        self._reach(largest)
        wide = piece.to(torch.float64, copy=True)
        self.squares += float(wide.dot(wide))
        return wide

    def _reach(self, largest: float) -> None:
        self.absmax = largest if self.absmax is None else max(self.absmax, largest)


def _pieces(gradient: Tensor, twin: Tensor | None) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Both, flat, in pieces of the same elements; in memory's order where they lie in the same one."""
    ours, theirs = _real(gradient), None if twin is None else _real(twin)
    if theirs is None or theirs.stride() == ours.stride():
        flat, flat_twin = in_storage_order(ours), None if theirs is None else in_storage_order(theirs)
    else:
        flat, flat_twin = ours.reshape(-1), theirs.reshape(-1)
    size = _PIECE if flat.device.type == "cpu" else _PIECE_ON_DEVICE
    for start in range(0, flat.numel(), size):
        yield flat[start : start + size], None if flat_twin is None else flat_twin[start : start + size]


def _real(x: Tensor) -> Tensor:
    """Complex numbers as their real and imaginary parts."""
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def _wide(x: Tensor) -> Tensor:
    """In FP32, or FP64 where it is that; complex numbers as their real and imaginary parts."""
    x = _real(x)
    return x if x.dtype == torch.float64 else x.float()


def _norm(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x, dtype=torch.float64))

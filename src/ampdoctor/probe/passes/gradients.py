"""How far a pass's gradients and outputs are from the reference's, in numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ampdoctor.facts.trace import ParameterGradient


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
    if scaled is None:
        # The parameter took part in FP32 only; it got nothing here.
        scaled = torch.zeros_like(present)
    unscaled = _wide(scaled) / scale
    finite = torch.isfinite(unscaled)
    sound = bool(finite.all())
    absmax = float(unscaled[finite].abs().max()) if bool(finite.any()) else None
    reference_absmax = reference_norm = relative_error = cosine = None
    nonzero = lost = None
    if exact is not None and bool(torch.isfinite(exact).all()):
        exact = _wide(exact)
        nonzero = int(torch.count_nonzero(exact))
        lost = int(((exact != 0) & (unscaled == 0)).sum())
        reference_absmax = float(exact.abs().max()) if exact.numel() else None
        reference_norm = _norm(exact)
        if sound and reference_norm > 0:
            relative_error = _norm(unscaled - exact) / reference_norm
            size = _norm(unscaled)
            if size > 0:
                product = float(torch.sum(unscaled.double() * exact.double()))
                cosine = max(-1.0, min(1.0, product / (size * reference_norm)))
    return ParameterGradient(
        name,
        unscaled.numel(),
        str(present.dtype).removeprefix("torch."),
        absmax,
        int(torch.isnan(unscaled).sum()),
        int(torch.isinf(unscaled).sum()),
        int((unscaled == 0).sum()),
        reference_absmax,
        nonzero,
        lost,
        relative_error,
        cosine,
        reference_norm,
    )


def _wide(gradient: Tensor) -> Tensor:
    """In FP32, or FP64 where it is that; complex numbers as their real and imaginary parts."""
    if gradient.is_complex():
        gradient = torch.view_as_real(gradient.resolve_conj())
    return gradient if gradient.dtype == torch.float64 else gradient.float()


def _norm(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x, dtype=torch.float64))

"""How far the FP32 reference's own gradients can be trusted: the same pass in float64."""

from __future__ import annotations

import math
from typing import Any

import torch

from ampdoctor.load.workload import Workload
from ampdoctor.probe.passes.one_pass import Run, run_pass
from ampdoctor.probe.passes.precision import reference
from ampdoctor.probe.watch.own_casts import AllFloat64
from ampdoctor.probe.watch.unrecorded import Absent

_SAME_LOSS = 1e-4
"""Difference, relative to the loss or to its terms, up to which both losses are of the same random draw; FP32
sums err by 1e-6 or so."""


def reference_errors(workload: Workload, batch: Any, seed: int, exact: Run) -> dict[str, float]:
    """{parameter: relative error of its FP32 gradient in the 2-norm, against float64; buffer: of its values}.

    A gradient that is zero in exact arithmetic is all rounding noise in FP32, and errs by 1 or more here. {}
    where the model does not run in float64, or draws other random numbers there.
    """
    precision = reference(exact.precision.device, torch.float64)
    wide: Run = run_pass(workload, batch, precision, seed, Absent)
    if wide.raised is not None:  # perhaps at FP32 that the model makes itself, next to float64
        wide = run_pass(workload, batch, precision, seed, AllFloat64)
    if wide.raised is not None or wide.interrupted or wide.loss is None or exact.loss is None:
        return {}
    expected, seen = wide.loss.double().cpu(), exact.loss.double().cpu()
    if not torch.allclose(seen, expected, rtol=_SAME_LOSS, atol=_SAME_LOSS * _terms_of_loss(workload, exact)):
        return {}
    errors = {}
    twins = {**wide.gradients, **wide.buffers}
    for name, value in {**exact.gradients, **exact.buffers}.items():
        twin = twins.get(name)
        size = torch.linalg.vector_norm(value.double())
        if twin is not None and twin.shape == value.shape and size > 0:
            errors[name] = float(torch.linalg.vector_norm(value.double() - twin.double()) / size)
    return errors


def _terms_of_loss(workload: Workload, exact: Run) -> float:
    """The most that one parameter adds to the loss, to first order: the size of its terms where they cancel.

    The sum of a layer norm's output is zero, its terms are not.
    """
    norm = torch.linalg.vector_norm
    terms = (
        float(norm(parameter.detach().double().cpu()) * norm(exact.gradients[name].double().cpu()))
        for name, parameter in workload.model.named_parameters()
        if name in exact.gradients
    )
    return max((term for term in terms if math.isfinite(term)), default=0.0)

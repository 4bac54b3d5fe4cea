"""Losses of (output, target), torch's by name and the user's own, for batches that hold inputs and target."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from ampdoctor.config.workload import LossBuiltin
from ampdoctor.errors import LoadError
from ampdoctor.load.call import call_model, fields, fits
from ampdoctor.load.describe import describe

TARGET_KEYS = ("labels", "label", "target", "targets", "y")
"""Where a batch with names holds the target; the first that is there counts."""

OUTPUT_NAMES = frozenset(
    {"input", "inputs", "output", "outputs", "out", "logits", "pred", "preds", "prediction", "predictions"}
    | {"y_pred", "y_hat", "yhat"}
)
"""What the first parameter of a loss (output, target) is called; no one calls a model so."""


def builtin_step(section: LossBuiltin) -> Callable[[torch.nn.Module, Any], Any]:
    """(model, batch) -> the named loss of the model's prediction and the batch's target."""
    return on_prediction(partial(LOSSES[section.builtin], **section.kwargs), "loss.builtin")


def takes_output(function: Any) -> bool:
    """Whether a loss is of (output, target) and not of (model, batch), by the name of its first parameter."""
    called = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        names = list(inspect.signature(called).parameters)
    except (ValueError, TypeError):  # Some functions written in C tell nothing about themselves.
        return False
    return bool(names) and names[0].lower() in OUTPUT_NAMES


def on_prediction(function: Callable[..., Any], where: str) -> Callable[[torch.nn.Module, Any], Any]:
    """(model, batch) -> ``function`` of the model's prediction and the batch's target.

    ``where`` is what a LoadError calls the loss.
    """

    def step(model: torch.nn.Module, batch: Any) -> Any:
        inputs, target = _split(batch, where)
        if isinstance(inputs, dict) and len(inputs) == 1 and not fits(model, (), inputs):
            (inputs,) = inputs.values()  # One input needs no name.
        return function(_prediction(call_model(model, inputs), where), target)

    return step


def _split(batch: Any, where: str) -> tuple[Any, torch.Tensor]:
    """(what the model gets, the target): of (x, y) the last, of a mapping what a TARGET_KEYS name holds."""
    named = fields(batch)
    if named is not None:
        key = next((key for key in TARGET_KEYS if key in named), None)
        if key is None or len(named) < 2:
            raise LoadError(
                f"{where}: the batch, {describe(batch)}, names no target",
                f"A loss of (output, target) looks for one of {', '.join(TARGET_KEYS)}, and inputs.",
            )
        target = named.pop(key)
        inputs: Any = named
    elif isinstance(batch, (tuple, list)) and len(batch) >= 2:
        *rest, target = batch
        inputs = tuple(rest)
    else:
        raise LoadError(
            f"{where}: the batch is {describe(batch)}",
            "A loss of (output, target) needs (inputs, target), or a mapping with labels or y.",
        )
    if not isinstance(target, torch.Tensor):
        raise LoadError(f"{where}: the batch's target is {describe(target)}, not a tensor")
    return inputs, target


def _prediction(output: Any, where: str) -> torch.Tensor:
    candidates = [output, getattr(output, "logits", None)]
    if isinstance(output, Mapping):
        candidates += [output.get("logits"), *(output.values() if len(output) == 1 else ())]
    elif isinstance(output, (tuple, list)):
        candidates += list(output[:1])
    found = next((value for value in candidates if isinstance(value, torch.Tensor)), None)
    if found is None:
        raise LoadError(
            f"{where}: the model returned {describe(output)}, and no prediction is to be seen in it",
            "Write the loss yourself: loss: {target: file.py:compute_loss}, with compute_loss(model, batch).",
        )
    return found


def _cross_entropy(prediction: torch.Tensor, target: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    return F.cross_entropy(*_classes_second(prediction, target), **kwargs)


def _nll(prediction: torch.Tensor, target: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    return F.nll_loss(*_classes_second(prediction, target), **kwargs)


def _classes_second(prediction: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    # torch wants classes in dimension 1; language models have them last.
    wanted = (*prediction.shape[:1], *prediction.shape[2:])
    if prediction.ndim > 2 and target.shape != wanted and target.shape == prediction.shape[:-1]:
        return prediction.flatten(0, -2), target.flatten()
    return prediction, target


def _bce(prediction: torch.Tensor, target: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    return F.binary_cross_entropy(prediction, _floating(target), **kwargs)


def _bce_with_logits(prediction: torch.Tensor, target: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    return F.binary_cross_entropy_with_logits(prediction, _floating(target), **kwargs)


def _kl_div(prediction: torch.Tensor, target: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    # As in torch, the prediction is log-probabilities; batchmean is the mathematical definition.
    return F.kl_div(prediction, target, **{"reduction": "batchmean", **kwargs})


def _floating(target: torch.Tensor) -> torch.Tensor:
    return target if target.dtype.is_floating_point else target.float()


LOSSES: dict[str, Callable[..., torch.Tensor]] = {
    "cross_entropy": _cross_entropy,
    "nll": _nll,
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "smooth_l1": F.smooth_l1_loss,
    "huber": F.huber_loss,
    "bce": _bce,
    "bce_with_logits": _bce_with_logits,
    "kl_div": _kl_div,
}

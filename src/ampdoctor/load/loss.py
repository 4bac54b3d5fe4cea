"""How a batch becomes a loss: the user's function, one of torch's losses, or what the model returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ampdoctor.config import Config
from ampdoctor.config.workload import LossBuiltin, LossTarget
from ampdoctor.errors import LoadError
from ampdoctor.load import targets
from ampdoctor.load.builtin_losses import builtin_step
from ampdoctor.load.call import call_model
from ampdoctor.load.describe import describe

Step = Callable[[torch.nn.Module, Any], Any]

NAME_A_LOSS = (
    "Name one: loss: {target: file.py:compute_loss}, where compute_loss(model, batch) returns one number; "
    "or loss: {builtin: cross_entropy}; or loss: none, to look at the forward pass only."
)


def build_step(config: Config) -> Step:
    """(model, batch) -> the scalar loss; with ``loss: none`` the model's outputs.

    What the user's code raises inside a step passes through. A result that is no loss is a LoadError.
    """
    section = config.loss
    if section == "none":
        return call_model
    if isinstance(section, LossTarget):
        return _target_step(config, section)
    if isinstance(section, LossBuiltin):
        compute, name = builtin_step(section), f"loss.builtin: {section.builtin}"
        return lambda model, batch: scalar(compute(model, batch), name)
    return lambda model, batch: loss_in(call_model(model, batch))


def _target_step(config: Config, section: LossTarget) -> Step:
    function = targets.resolve(section.target, config.directory, "loss.target")
    name = f"loss.target: {section.target}"
    if isinstance(function, type):
        raise LoadError(
            f"{name} is {describe(function)}", "A loss is a function: compute_loss(model, batch)."
        )
    targets.check_call(function, section.target, "loss", (None, None), section.kwargs)
    return lambda model, batch: scalar(function(model, batch, **section.kwargs), name)


def loss_in(output: Any, name_one: str = NAME_A_LOSS) -> torch.Tensor:
    """The loss that a model's output carries: ``.loss``, ``["loss"]``, or a scalar output.

    ``name_one`` tells the user, where there is none, how to give one.
    """
    loss = getattr(output, "loss", None)
    if loss is not None:
        return scalar(loss, "the model's output.loss")
    if isinstance(output, Mapping) and output.get("loss") is not None:
        return scalar(output["loss"], 'the model\'s output["loss"]')
    if isinstance(output, torch.Tensor) and output.numel() == 1:
        return scalar(output, "the model")
    raise LoadError(f"the model returned {describe(output)}, not a loss", _output_hint(output, name_one))


def _output_hint(output: Any, name_one: str) -> str:
    if hasattr(output, "loss") or (isinstance(output, Mapping) and "loss" in output):
        return f"Its loss is None: give the model its labels in the batch. {name_one}"
    if isinstance(output, (tuple, list)):
        scalars = [n for n, item in enumerate(output) if isinstance(item, torch.Tensor) and item.numel() == 1]
        if len(scalars) == 1:
            return f"If item {scalars[0]} is the loss, return it from a function of your own. {name_one}"
    return name_one


def scalar(loss: Any, name: str) -> torch.Tensor:
    """``loss`` itself, where it is a single floating-point number; LoadError otherwise."""
    if not isinstance(loss, torch.Tensor):
        hints: list[tuple[type | tuple[type, ...], str]] = [
            (type(None), "Is a `return` missing?"),
            ((float, int), "Return the tensor itself, without .item() or float()."),
            ((tuple, list, Mapping), "Return only the loss, one number."),
        ]
        hint = next((text for kind, text in hints if isinstance(loss, kind)), "")
        raise LoadError(f"{name} gives {describe(loss)}, not a loss tensor", hint)
    if loss.numel() != 1:
        hint = "Reduce it: loss.mean()." if loss.numel() else "It is empty; is the batch?"
        raise LoadError(f"{name} gives {describe(loss)}; a loss is a single number", hint)
    if not loss.dtype.is_floating_point:
        raise LoadError(f"{name} gives {describe(loss)}, which has no gradient", "A loss is floating point.")
    return loss

"""How a batch becomes a loss: the user's function, one of torch's losses, or what the model returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from ampdoctor.config import Config
from ampdoctor.config.workload import LossBuiltin, LossTarget
from ampdoctor.errors import LoadError
from ampdoctor.load import targets
from ampdoctor.load.builtin_losses import builtin_step, on_prediction, takes_output
from ampdoctor.load.call import call_model
from ampdoctor.load.describe import describe

Step = Callable[[torch.nn.Module, Any], Any]

NAME_A_LOSS = (
    "Name one: loss: {target: file.py:compute_loss}, where compute_loss(model, batch) returns one number; "
    "or loss: {builtin: cross_entropy}; or loss: none, to look at the forward pass only."
)

ONE_OF_SEVERAL = (
    "Return the one number that backward is called on, such as sum(losses.values()) or losses[0]; losses "
    "that have backwards of their own are scanned one at a time, each by a function of its own."
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
    kwargs = section.kwargs
    if isinstance(function, type) and issubclass(function, torch.nn.Module):
        function, kwargs = targets.call(function, section.target, "loss", kwargs), {}
    if isinstance(function, type):
        raise LoadError(
            f"{name} is {describe(function)}", "A loss is a function: compute_loss(model, batch)."
        )
    targets.check_call(function, section.target, "loss", (None, None), kwargs)
    return step_of(function, name, kwargs)


def step_of(function: Callable[..., Any], name: str, kwargs: Mapping[str, Any] | None = None) -> Step:
    """(model, batch) -> the loss of the user's function, be it of (model, batch) or of (output, target)."""
    compute = partial(function, **(kwargs or {}))
    step = on_prediction(compute, name) if takes_output(function) else compute
    return lambda model, batch: _returned(step(model, batch), name)


def _returned(result: Any, name: str) -> torch.Tensor:
    carried = _carried(result)
    return scalar(result, name) if carried is None else scalar(carried[0], f"{name}{carried[1]}")


def loss_in(output: Any, name_one: str = NAME_A_LOSS) -> torch.Tensor:
    """The loss that a model's output carries: ``.loss``, ``["loss"]``, a scalar, the one scalar in a tuple.

    ``name_one`` tells the user, where there is none, how to give one.
    """
    carried = _carried(output)
    if carried is not None:
        return scalar(carried[0], f"the model's output{carried[1]}")
    if isinstance(output, torch.Tensor) and output.numel() == 1:
        return scalar(output, "the model")
    raise LoadError(f"the model returned {describe(output)}, not a loss", _output_hint(output, name_one))


def _carried(output: Any) -> tuple[Any, str] | None:
    """(the loss in it, how one reaches it): ``.loss``, ``["loss"]``, ``[0]``; None where it is not clear."""
    loss = getattr(output, "loss", None)
    if loss is not None:
        return loss, ".loss"
    if isinstance(output, Mapping):
        return None if output.get("loss") is None else (output["loss"], '["loss"]')
    if isinstance(output, (tuple, list)):
        scalars = _scalars(output)
        if len(scalars) == 1:
            return output[scalars[0]], f"[{scalars[0]}]"
    return None


def _scalars(items: Sequence[Any]) -> list[int]:
    """Which of them may be a loss: single numbers, those with a gradient where one of them has any."""
    found = [
        n
        for n, item in enumerate(items)
        if isinstance(item, torch.Tensor) and item.numel() == 1 and item.dtype.is_floating_point
    ]
    return [n for n in found if items[n].requires_grad] or found


def _output_hint(output: Any, name_one: str) -> str:
    if hasattr(output, "loss") or (isinstance(output, Mapping) and "loss" in output):
        return f"Its loss is None: give the model its labels in the batch. {name_one}"
    return name_one


def scalar(loss: Any, name: str) -> torch.Tensor:
    """``loss`` itself, where it is a single floating-point number; LoadError otherwise."""
    if not isinstance(loss, torch.Tensor):
        hints: list[tuple[type | tuple[type, ...], str]] = [
            (type(None), "Is a `return` missing?"),
            ((float, int), "Return the tensor itself, without .item() or float()."),
            (Mapping, ONE_OF_SEVERAL),
            ((tuple, list), ONE_OF_SEVERAL),
        ]
        hint = next((text for kind, text in hints if isinstance(loss, kind)), "")
        raise LoadError(f"{name} gives {describe(loss)}, not a loss tensor", hint)
    if loss.numel() != 1:
        hint = "Reduce it: loss.mean()." if loss.numel() else "It is empty; is the batch?"
        raise LoadError(f"{name} gives {describe(loss)}; a loss is a single number", hint)
    if not loss.dtype.is_floating_point:
        raise LoadError(f"{name} gives {describe(loss)}, which has no gradient", "A loss is floating point.")
    return loss

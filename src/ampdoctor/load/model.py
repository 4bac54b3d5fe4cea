"""The model that a config names: built, unwrapped, with its checkpoint loaded."""

from __future__ import annotations

from typing import Any

import torch

from ampdoctor.config import Config
from ampdoctor.errors import LoadError
from ampdoctor.load import targets
from ampdoctor.load.checkpoint import load_checkpoint
from ampdoctor.load.describe import describe, listed
from ampdoctor.load.wrappers import unwrap


def load_model(config: Config) -> tuple[torch.nn.Module, tuple[str, ...]]:
    """The model on the CPU, and the paths of the modules in it that were compiled."""
    section = config.model
    found = targets.resolve(section.target, config.directory, "model.target")
    if isinstance(found, torch.nn.Module):
        if section.kwargs:
            raise LoadError(
                f"model.kwargs: {section.target} is a model already and takes no arguments",
                "Name the class or the function that builds it, or leave kwargs out.",
            )
        built: Any = found
    elif callable(found):
        built = targets.call(found, section.target, "model", section.kwargs)
    else:
        raise LoadError(
            f"model.target: {section.target} is {describe(found)}, no model and no function that builds one"
        )
    if not isinstance(built, torch.nn.Module):
        raise LoadError(
            f"model.target: {section.target} returned {describe(built)}, not a model", _hint(built)
        )
    model, compiled = unwrap(built)
    _check_values(model, section.target)
    if any(tensor.device.type != "cpu" for tensor in (*model.parameters(), *model.buffers())):
        with targets.user_code(f"model.target: moving {section.target} to the CPU"):
            model.to("cpu")
    if section.checkpoint is not None:
        load_checkpoint(model, config.path(section.checkpoint), section.checkpoint)
    if section.mode is not None:
        model.train(section.mode == "train")
    return model, compiled


def _hint(built: object) -> str:
    if built is None:
        return "Is a `return` missing?"
    if isinstance(built, type) and issubclass(built, torch.nn.Module):
        return f"Return {built.__name__}(...), an instance, or name the class itself as the target."
    if isinstance(built, (tuple, list)) and any(isinstance(item, torch.nn.Module) for item in built):
        return "Return only the torch.nn.Module."
    return "It must return a torch.nn.Module."


def _check_values(model: torch.nn.Module, target: str) -> None:
    named = [*model.named_parameters(), *model.named_buffers()]
    unfilled = [name for name, tensor in named if tensor.is_meta]
    if unfilled:
        raise LoadError(
            f"model.target: {target} built {len(unfilled)} tensors on the meta device, without values: "
            f"{listed(unfilled, 4)}",
            "Build it on the CPU, not under torch.device('meta') or init_empty_weights().",
        )

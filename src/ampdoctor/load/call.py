"""How a batch is handed to a model."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

import torch

from ampdoctor.errors import LoadError
from ampdoctor.load.describe import describe, listed
from ampdoctor.load.traceback import PASSED_AS


def call_model(model: torch.nn.Module, batch: Any) -> Any:
    """The model's output for a batch.

    ``model(**batch)`` for a mapping or a dataclass, ``model(*batch)`` for a tuple or a list, ``model(batch)``
    for all else and wherever the first does not fit the signature of ``forward``.
    """
    for args, kwargs in _ways(batch):
        if fits(model, args, kwargs):
            try:
                return model(*args, **kwargs)
            except Exception as error:
                setattr(error, PASSED_AS, _words(model, batch, args, kwargs))
                raise
    raise LoadError(
        f"the batch does not fit the model: {type(model).__name__}.forward{inspect.signature(model.forward)} "
        f"cannot take {describe(batch)}",
        "Name a mapping's keys after forward's parameters, or write a loss, compute_loss(model, batch), that "
        "calls the model itself.",
    )


def _words(model: torch.nn.Module, batch: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    if kwargs:
        return f"the batch was passed as model({', '.join(f'{name}=...' for name in kwargs)})"
    if args != (batch,):
        return f"the batch was passed as model(*batch), {describe(batch)}"
    named = fields(batch)
    if named is None:
        several = "; a list with a tensor in it is one batch, of several tensors"
        is_list = isinstance(batch, list)
        return f"the batch was passed as model(batch), {describe(batch)}{several if is_list else ''}"
    return (
        f"the batch was passed whole, as model(batch): its keys {listed(list(named))} are not the parameters "
        f"of {type(model).__name__}.forward{inspect.signature(model.forward)}"
    )


def fits(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether ``model.forward`` has parameters for these arguments; True where it does not tell."""
    try:
        signature = inspect.signature(model.forward)
    except (ValueError, TypeError):  # A ScriptModule; the call itself will say.
        return True
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def fields(batch: Any) -> dict[str, Any] | None:
    """A mapping's or dataclass's content by name; None for anything else."""
    if isinstance(batch, Mapping) and all(isinstance(key, str) for key in batch):
        return dict(batch)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return None


def _ways(batch: Any) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    whole: tuple[tuple[Any, ...], dict[str, Any]] = ((batch,), {})
    named = fields(batch)
    if named is not None:
        return [((), named), whole]
    if isinstance(batch, (tuple, list)) and not isinstance(batch, torch.nn.utils.rnn.PackedSequence):
        return [(tuple(batch), {}), whole]
    return [whole]

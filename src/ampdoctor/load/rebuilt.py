"""Modules that are made again without the user's code: torch's own, from their attributes; Hugging Face's,
from their config. Weights come later: see ``load.from_bundle``."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import torch
from torch import nn

from ampdoctor.errors import LoadError
from ampdoctor.load.script.tape_calls import decoded, encoded
from ampdoctor.load.seeds import preserved_rng

_STATE = frozenset((*vars(nn.Module()), "training"))
"""What every module has: its parameters, its children, its hooks."""
_DERIVED = frozenset(("_flat_weights", "_flat_weight_refs"))
"""What torch's recurrent modules make of their parameters."""
_WRAPPED = frozenset(("forward", "_original_forward"))
"""What Accelerate lays over a module: autocast around its forward, which the recording has besides."""
_PACKAGE = "torch.nn.modules."


def recipe_of(module: nn.Module) -> Any:
    """How the module can be made again, as JSON; None where only the user's code can make it."""
    try:
        return _from_transformers(module) or {"torch.nn": _tree(module)}
    except LoadError:
        return None


def made_of(recipe: Any) -> nn.Module:
    """The module that the recipe describes, its weights without meaning. Raises LoadError."""
    try:
        ((kind, inside),) = recipe.items()
        if kind == "transformers":
            return _transformers_model(inside)
        if kind == "torch.nn":
            return _module(inside)
    except LoadError:
        raise
    except Exception as error:  # somebody's JSON can be wrong in any way
        raise LoadError(
            f"its model cannot be made of what it holds: {type(error).__name__}: {error}"
        ) from error
    raise LoadError(f"its model is made in a way that this version does not know: {kind}")


# ---------------------------------------------------------------- torch.nn


def _tree(module: nn.Module) -> dict[str, Any]:
    name = f"{type(module).__module__}.{type(module).__name__}".removeprefix(_PACKAGE)
    if not type(module).__module__.startswith(_PACKAGE) or _class(name) is not type(module):
        raise LoadError(f"{type(module).__qualname__} is not of torch.nn")
    left_out = _STATE | _DERIVED | (_WRAPPED if "_original_forward" in vars(module) else frozenset())
    own = {key: value for key, value in vars(module).items() if key not in left_out}
    if any(value for key, value in vars(module).items() if key.endswith("_hooks")):
        raise LoadError("it has hooks")
    return {
        "class": name,
        "attributes": encoded(own, _no_tensor),
        "parameters": {key: None if p is None else list(p.shape) for key, p in module._parameters.items()},
        "buffers": {
            key: None if b is None else [list(b.shape), key not in module._non_persistent_buffers_set]
            for key, b in module._buffers.items()
        },
        "children": [
            [key, None if child is None else _tree(child)] for key, child in module._modules.items()
        ],
    }


def _class(name: str) -> Any:
    """The class that is ``linear.Linear`` below torch.nn.modules; None for anything else."""
    module, _, cls = name.rpartition(".")
    found = getattr(sys.modules.get(_PACKAGE + module), cls, None)
    return found if isinstance(found, type) and issubclass(found, nn.Module) else None


def _no_tensor(_: Any) -> Any:
    raise LoadError("a tensor among its attributes")


def _module(tree: Any) -> nn.Module:
    cls = _class(str(tree["class"]))
    if cls is None:
        raise LoadError(f"torch.nn has no module {tree['class']}")
    module: nn.Module = object.__new__(cls)  # no constructor: its arguments are not kept, what it set is
    nn.Module.__init__(module)
    module.__dict__.update(decoded(tree["attributes"], lambda tag, inside: None))
    for key, shape in tree["parameters"].items():
        module.register_parameter(key, None if shape is None else nn.Parameter(torch.zeros(shape)))
    for key, about in tree["buffers"].items():
        module.register_buffer(
            key, None if about is None else torch.zeros(about[0]), about is None or about[1]
        )
    for key, child in tree["children"]:
        module._modules[key] = None if child is None else _module(child)
    if isinstance(module, nn.RNNBase):
        module._init_flat_weights()
    return module


# ---------------------------------------------------------------- Hugging Face


def _from_transformers(module: nn.Module) -> Any:
    library = sys.modules.get("transformers")
    name = type(module).__name__
    if library is None or not type(module).__module__.startswith("transformers."):
        return None
    if getattr(library, name, None) is not type(module) or not hasattr(module, "config"):
        return None
    config: Any = module.config
    text = config.to_json_string(use_diff=False)
    attention = getattr(config, "_attn_implementation", None)
    return {"transformers": {"class": name, "config": json.loads(text), "attention": attention}}


def _transformers_model(inside: Any) -> nn.Module:
    try:
        library: Any = importlib.import_module("transformers")
    except ModuleNotFoundError as error:
        raise LoadError(
            f"its model is transformers' {inside['class']}, and transformers is not installed here",
            f"ampdoctor runs in {sys.executable}",
        ) from error
    cls = getattr(library, str(inside["class"]), None)
    if not (isinstance(cls, type) and issubclass(cls, nn.Module) and hasattr(cls, "config_class")):
        raise LoadError(f"transformers {library.__version__} has no model {inside['class']}")
    config: Any = cls.config_class.from_dict(dict(inside["config"]))
    if inside.get("attention") is not None:
        config._attn_implementation = inside["attention"]
    with preserved_rng():
        model: nn.Module = cls(config)
    return model

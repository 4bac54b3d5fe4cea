"""Weights from a file into a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ampdoctor.errors import LoadError
from ampdoctor.load.checkpoint_folder import read_folder, read_index, read_one
from ampdoctor.load.describe import describe

WRAPPERS = ("state_dict", "model_state_dict", "model")
"""Keys under which training programs keep a model's state next to other things."""


def load_checkpoint(model: torch.nn.Module, file: Path, shown: str) -> None:
    """Copies the file's weights into the model; LoadError lists what does not fit.

    ``shown`` is the file as the config names it.
    """
    where = f"model.checkpoint: {shown}"
    names = list(model.state_dict())
    content: Any
    if file.is_dir():
        content = read_folder(file, where, names)
    elif file.name.endswith(".index.json"):
        content = read_index(file, where)
    elif file.suffix in (".safetensors", ".pt", ".pth", ".bin", ".ckpt"):
        content = read_one(file, where)
    else:
        raise LoadError(
            f"{where} is no .safetensors, .pt, .pth, .bin or .ckpt file",
            "It may also be an .index.json of shards, or a folder with one.",
        )
    state = _fitting(_state_dict(content, where), set(names))
    error = ""
    try:
        missing, unexpected = model.load_state_dict(state, strict=False)
    except RuntimeError as raised:  # How it reports other shapes, even when not strict.
        missing = [name for name in names if name not in state]
        unexpected = [name for name in state if name not in names]
        error = str(raised)
    reshaped = _other_shapes(model, state)
    missing = _really_missing(model, state, missing)
    if error and not reshaped:
        raise LoadError(f"{where} does not fit the model: {error}")
    misfits = {
        "missing from the file": missing,
        "unknown to the model": unexpected,
        "of another shape": reshaped,
    }
    if any(misfits.values()):
        counts = ", ".join(f"{len(names)} {what}" for what, names in misfits.items() if names)
        listing = "\n".join(_listing(what, names) for what, names in misfits.items() if names)
        advice = _advice(missing, unexpected)
        raise LoadError(f"{where} does not fit the model: {counts}", f"{advice}\n{listing}")


def _state_dict(content: Any, where: str) -> dict[str, Any]:
    for _ in WRAPPERS:
        inner = next((content[k] for k in WRAPPERS if k in content), None) if _is_mapping(content) else None
        if not _is_mapping(inner):
            break
        content = inner
    if not _is_mapping(content) or not any(isinstance(value, torch.Tensor) for value in content.values()):
        raise LoadError(
            f"{where} holds {describe(content)}, not weights by name",
            "Save them with torch.save(model.state_dict(), file).",
        )
    return dict(content)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def _fitting(state: dict[str, Any], wanted: set[str]) -> dict[str, Any]:
    """The state, its names without DataParallel's and torch.compile's prefixes where that fits better.

    Where the whole model lies below one prefix, as in Lightning's ``model.``, it is that part.
    """
    plain = {_plain(key): value for key, value in state.items()}
    better = len(plain) == len(state) and len(wanted & set(plain)) > len(wanted & set(state))
    found = plain if better else state
    if wanted and not wanted & set(found):
        below = {key[: -len(one)] for one in (min(wanted),) for key in found if key.endswith(f".{one}")}
        whole = sorted(prefix for prefix in below if all(f"{prefix}{name}" in found for name in wanted))
        if "model." in whole or len(whole) == 1:
            prefix = "model." if "model." in whole else whole[0]
            return {name: found[f"{prefix}{name}"] for name in wanted}
    return found


def _plain(key: str) -> str:
    while key.startswith(("module.", "_orig_mod.")):
        key = key.partition(".")[2]
    return key.replace("._orig_mod.", ".")


def _other_shapes(model: torch.nn.Module, state: Mapping[str, Any]) -> list[str]:
    found = []
    for name, own in model.state_dict(keep_vars=True).items():
        theirs = state.get(name)
        if not isinstance(own, torch.Tensor) or not isinstance(theirs, torch.Tensor):
            continue
        if torch.nn.parameter.is_lazy(own) or own.shape == theirs.shape:
            continue
        found.append(f"{name}: the file has {list(theirs.shape)}, the model {list(own.shape)}")
    return found


def _really_missing(model: torch.nn.Module, state: Mapping[str, Any], missing: list[str]) -> list[str]:
    # Files often hold tied weights once: a name whose tensor came in under another name is not missing.
    own = model.state_dict(keep_vars=True)
    loaded = {id(own[name]) for name in state if name in own}
    return [name for name in missing if name not in own or id(own[name]) not in loaded]


def _listing(what: str, names: list[str]) -> str:
    lines = [f"  {what}:", *(f"    {name}" for name in names[:10])]
    if len(names) > 10:
        lines.append(f"    ... and {len(names) - 10} more")
    return "\n".join(lines)


def _advice(missing: list[str], unexpected: list[str]) -> str:
    for longer, shorter, one, other in (
        (unexpected, missing, "file", "model"),
        (missing, unexpected, "model", "file"),
    ):
        prefixes = {
            long.removesuffix(short) for short in shorter for long in longer if long.endswith(f".{short}")
        }
        common = [p for p in prefixes if {f"{p}{short}" for short in shorter} <= set(longer)]
        if shorter and common:
            return f"The {one}'s names start with '{min(common, key=len)}'; the {other}'s do not."
    return "Is it the checkpoint of this model, built with the same model.kwargs?"

"""Files that hold tensors, read without running anything that is in them."""

from __future__ import annotations

import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from ampdoctor.errors import LoadError


def read_pickled(file: Path, where: str) -> Any:
    """What ``torch.save`` wrote, if it is nothing but tensors in plain containers."""
    _check_exists(file, where)
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        asked_for = re.search(r"GLOBAL ([\w.]+)", str(error))
        name = f" (it asks for {asked_for[1]})" if asked_for else ""
        raise LoadError(
            f"{where} holds more than plain tensors{name}; reading it could run code, so it was not read",
            "Save only tensors, dicts, lists and tuples: torch.save(batch, file), "
            "or torch.save(model.state_dict(), file)." + _converted(file),
        ) from error
    except Exception as error:  # Bytes that are no such file can fail anywhere in torch's reader.
        raise LoadError(f"{where} cannot be read as a file of torch.save: {_short(error)}") from error


def _converted(file: Path) -> str:
    """The line that makes a file of plain tensors of a checkpoint with other things in it."""
    if file.suffix not in (".ckpt", ".pt", ".pth"):
        return ""
    return (
        " Of a checkpoint that you trust, this makes one: "
        f"python -c \"import torch; c = torch.load('{file.name}', "
        "weights_only=False); torch.save(c.get('state_dict', c.get('model', c)), 'weights.pt')\""
    )


def read_safetensors(file: Path, where: str) -> dict[str, torch.Tensor]:
    """The tensors by name."""
    _check_exists(file, where)
    try:
        return load_file(file, device="cpu")
    except (SafetensorError, OSError) as error:
        raise LoadError(f"{where} cannot be read as safetensors: {_short(error)}") from error


def read_npz(file: Path, where: str) -> dict[str, torch.Tensor]:
    """The arrays as tensors by name; nothing pickled is read."""
    _check_exists(file, where)
    try:
        import numpy
    except ModuleNotFoundError as error:
        raise LoadError(f"{where} needs numpy, which is not installed") from error
    if not zipfile.is_zipfile(file):
        raise LoadError(f"{where} is no archive of numpy.savez")
    try:
        with numpy.load(file, allow_pickle=False) as arrays:
            return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    except (ValueError, TypeError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise LoadError(f"{where} cannot be read as arrays of numbers: {_short(error)}") from error


def _check_exists(file: Path, where: str) -> None:
    if not file.is_file():
        what = "is a folder" if file.is_dir() else f"is not there (looked in {file.parent})"
        raise LoadError(f"{where} {what}")


def _short(error: Exception) -> str:
    first_line = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first_line[:160]}" if first_line else type(error).__name__

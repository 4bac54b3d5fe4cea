"""A bundle in a config's place: the recorded step as a workload, and how its script ran it, as a config."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from ampdoctor.api.script_capture import loss_config
from ampdoctor.api.settings import config_of
from ampdoctor.config import Config
from ampdoctor.errors import ConfigError, LoadError
from ampdoctor.facts.bundle import Bundle
from ampdoctor.load import targets
from ampdoctor.load.from_bundle import changed_files, recorded_lines, workload_from
from ampdoctor.load.model import load_model
from ampdoctor.load.workload import Workload
from ampdoctor.probe.passes.device import choose_device, device_name
from ampdoctor.store.bundles import read_bundle
from ampdoctor.store.codec import FileError
from ampdoctor.version import VERSION

PACKAGES = ("numpy", "transformers", "lightning", "accelerate")
"""Libraries that a step may be computed with, and whose versions a bundle names."""


@contextmanager
def bundled(
    folder: Path, model: str | None = None, overrides: Sequence[str] = ()
) -> Iterator[tuple[Workload, Config, Bundle]]:
    """The recorded step, and its config. ``model``: ``file.py:build_model``, where the bundle cannot make it.

    Raises ConfigError for a folder that holds no whole bundle, LoadError where its step cannot be made here.
    """
    config_of(folder.name, overrides)  # what is wrong in them is said before anything is read
    try:
        bundle, tensors = read_bundle(folder)
    except FileError as error:
        raise ConfigError(f"{folder} {error}") from error
    except FileNotFoundError as error:
        raise ConfigError(
            f"there is no bundle {folder}", "`ampdoctor run --record DIR train.py` writes them"
        ) from error
    except OSError as error:
        raise ConfigError(f"cannot read {folder}: {error.strerror or error}") from error
    try:
        user_model = None if model is None else _user_model(model)
        config = _config(bundle, overrides)
        device = choose_device(config.precision.device)
        workload = workload_from(bundle, tensors, bundle.script, user_model, device)
        with recorded_lines(bundle):
            yield workload, config, bundle
    except LoadError as error:
        if error.message.startswith(("--model", "model.target")):
            raise
        raise LoadError(f"{folder}: {error.message}", error.hint, error.user_traceback) from error


def _user_model(target: str) -> nn.Module:
    config = config_of(target, model={"target": target})
    with targets.imported_anew(Path.cwd()):
        return load_model(config)[0]


def _config(bundle: Bundle, overrides: Sequence[str]) -> Config:
    # as it ran, as far as there is such a device here: what a CPU did is no GPU's, and not imitated
    on_cpu = torch.device(bundle.device).type == "cpu"
    device, emulate = ("cpu", "none") if on_cpu else ("auto", "cuda")
    dtypes = [getattr(torch, name) for name in bundle.dtypes]
    model = _built_in(bundle)
    return loss_config(model, dtypes, bundle.loss_scale, device, bundle.script, overrides, emulate)


def _built_in(bundle: Bundle) -> nn.Module:
    """What ``loss_config`` asks of a model: the dtypes of its weights."""
    model = nn.Module()
    for number, name in enumerate(bundle.weight_dtypes):
        model.register_parameter(f"p{number}", nn.Parameter(torch.zeros(0, dtype=getattr(torch, name))))
    return model


def differences(bundle: Bundle, config: Config) -> list[str]:
    """What is not here as it was there: versions, device, generators, lines; each one in a few words."""
    here = choose_device(config.precision.device)
    found = [
        f"{what} {there} there, {now} here"
        for what, there, now in (
            ("ampdoctor", bundle.tool_version, VERSION),
            ("torch", bundle.torch_version, torch.__version__),
            ("Python", bundle.python_version, platform.python_version()),
            *((name, there, version_of(name) or "none") for name, there in bundle.packages.items()),
        )
        if there != now
    ]
    there = torch.device(bundle.device)
    if there.type == here.type == "cpu" and config.precision.emulate == "cuda":
        found.append("recorded on a CPU as it is, run on one that imitates CUDA")
    if there.type != here.type:
        name = f" ({bundle.device_name})" if bundle.device_name else ""
        found.append(f"recorded on {bundle.device}{name}, run on {here}")
        drew = any(torch.device(d).type == there.type for call in bundle.calls for d in call.random)
        if drew and there.type != "cpu":
            found.append(f"what {bundle.device} drew (dropout) is drawn anew")
    elif bundle.device_name != device_name(here):
        found.append(f"recorded on {bundle.device_name}, run on {device_name(here)}")
    found += [f"{file} has other lines than it had" for file in changed_files(bundle)]
    return found


def version_of(package: str) -> str | None:
    """The installed version; None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None

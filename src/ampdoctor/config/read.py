"""A checked ``Config`` from a file, from command-line options, or from both."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ampdoctor.config.document import Document, override, read_yaml
from ampdoctor.config.problems import describe
from ampdoctor.config.schema import Config
from ampdoctor.config.script_names import not_a_config
from ampdoctor.errors import ConfigError
from ampdoctor.files import read_bounded

INIT_HINT = "`ampdoctor init` writes a config with every key explained."
OPTIONS_HINT = "Without a config: --model models.py:build_model --data models.py:build_batch"
DATA_FILES = (".pt", ".pth", ".npz", ".safetensors")


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """The config in a YAML file, with each ``key.path=value`` written over it.

    ConfigError names every problem at once. Paths given in ``overrides`` too start from the file's folder.
    """
    if path.suffix == ".py":
        raise not_a_config(path)
    return parse_config(_read(path), path, overrides)


def parse_config(text: str, path: Path, overrides: Sequence[str] = ()) -> Config:
    """The config in ``text``, as if it were the content of the file ``path``."""
    document = read_yaml(text, str(path))
    override(document, overrides)
    return _checked(document).located(path.parent.absolute(), path.name)


def config_from_options(
    model: str | None = None,
    data: str | None = None,
    loss: str | None = None,
    overrides: Sequence[str] = (),
    optimizer: str | None = None,
) -> Config:
    """The config that ``--model``, ``--data``, ``--loss``, ``--optimizer`` and ``--set`` describe.

    ``data`` is a target or a file with tensors; ``loss`` is a target, a built-in loss's name, or ``none``.
    Paths start here.
    """
    document = Document("")
    document.options = {("model",): "--model", ("data",): "--data"}
    if model is not None:
        document.values["model"] = {"target": model}
        document.options["model", "target"] = f"--model {model}"
    if data is not None:
        key = "file" if data.endswith(DATA_FILES) else "target"
        document.values["data"] = {key: data}
        document.options["data", key] = f"--data {data}"
    if loss is not None:
        key = "target" if ":" in loss else "builtin"
        document.values["loss"] = loss if loss == "none" else {key: loss}
        document.options["loss", key] = f"--loss {loss}"
    if optimizer is not None:
        document.values["optimizer"] = {"target": optimizer}
        document.options["optimizer", "target"] = f"--optimizer {optimizer}"
    override(document, overrides)
    return _checked(document).located(Path.cwd(), "")


def config_from_values(values: Mapping[str, Any], title: str, overrides: Sequence[str] = ()) -> Config:
    """The config that Python code gives as plain values, called ``title`` in a report; paths start here."""
    document = Document("", dict(values))
    override(document, overrides)
    return _checked(document, "the command line" if overrides else "the call", "").located(Path.cwd(), title)


def _checked(document: Document, subject: str = "the command line", hint: str = OPTIONS_HINT) -> Config:
    problems = list(document.problems)
    config: Config | None = None
    try:
        config = Config.model_validate(document.values)
    except ValidationError as error:
        problems += describe(error, document)
    if config is None or problems:
        count = "a problem" if len(problems) == 1 else f"{len(problems)} problems"
        if document.name:
            subject, hint = document.name, INIT_HINT
        raise ConfigError(f"{subject} has {count}", hint, tuple(problems))
    return config


def _read(path: Path) -> str:
    try:
        return read_bounded(path).decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"there is no config file {path}", _missing_hint(path)) from None
    except IsADirectoryError:
        found = sorted(str(p) for p in path.glob("*.y*ml"))
        hint = f"It holds: {', '.join(found[:5])}" if found else INIT_HINT
        raise ConfigError(f"{path} is a folder, not a config file", hint) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is no text file in UTF-8", INIT_HINT) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error


def _missing_hint(path: Path) -> str:
    if ".py:" in str(path):
        return f"To scan without a config: --model {path} --data file.py:name"
    folder = path.parent
    configs = [p.name for p in folder.glob("*.y*ml")] if folder.is_dir() else []
    near = difflib.get_close_matches(path.name, configs, n=1)
    return f"Did you mean {folder / near[0]}?" if near else INIT_HINT

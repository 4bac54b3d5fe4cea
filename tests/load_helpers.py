"""A folder with the user's files in it, loaded the way the command line does."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

from ampdoctor.config import parse_config
from ampdoctor.errors import LoadError
from ampdoctor.load import Workload, load

MODELS = """
    import torch

    def build_model(out=2):
        return torch.nn.Linear(3, out)

    def build_batch():
        return torch.ones(4, 3)

    def compute_loss(model, batch):
        return model(batch).square().mean()
    """

CONFIG = """
    model: {target: models.py:build_model}
    data: {target: models.py:build_batch}
    loss: {target: models.py:compute_loss}
    """


def write(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(textwrap.dedent(text))
    return file


def load_in(folder: Path, config: str = CONFIG, overrides: Sequence[str] = ()) -> Workload:
    return load(parse_config(textwrap.dedent(config), folder / "config.yaml", overrides))


def load_failure(folder: Path, config: str = CONFIG, overrides: Sequence[str] = ()) -> LoadError:
    with pytest.raises(LoadError) as caught:
        load_in(folder, config, overrides)
    assert caught.value.exit_code == 2
    return caught.value

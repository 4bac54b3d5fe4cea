"""Configs from text, and the problems of wrong ones."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from ampdoctor.config import Config, parse_config
from ampdoctor.errors import ConfigError

SMALLEST = "model: {target: models.py:build_model}\ndata: {target: models.py:build_batch}\n"


def parse(text: str, *overrides: str) -> Config:
    return parse_config(textwrap.dedent(text), Path("config.yaml"), overrides)


def failure(text: str, *overrides: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse(text, *overrides)
    return caught.value


def problems(text: str, *overrides: str) -> list[str]:
    return list(failure(text, *overrides).problems)

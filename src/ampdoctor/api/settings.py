"""From keyword arguments to a checked Config: the same keys, defaults and messages as in a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ampdoctor.config import Config, config_from_values

Section = Mapping[str, Any]
"""A section of the config, as a mapping of its keys."""


def config_of(title: str, overrides: Sequence[str] = (), **sections: Any) -> Config:
    """What a config with these sections and ``key=value`` over them asks for; None counts as left out."""
    # A config names its model and data. Here they are at hand, and these targets are never resolved.
    live = {"model": {"target": "python:model"}, "data": {"target": "python:batch"}}
    given = {name: section for name, section in sections.items() if section is not None}
    return config_from_values({**live, **given}, title, overrides)


def precision_section(precision: Section | str | torch.dtype | None, **single: Any) -> dict[str, Any]:
    """The config's section: ``precision`` and the keywords that name one of its keys."""
    section: dict[str, Any] = {}
    if isinstance(precision, Mapping):
        section = {key: _plain(value) for key, value in precision.items()}
    elif precision is not None:
        section["dtype"] = _plain(precision)
    for key, value in single.items():
        if value is None:
            continue
        if key in section:
            raise TypeError(f"got {key} twice: as a keyword and in precision")
        section[key] = _plain(value)
    return section


def _plain(value: Any) -> Any:
    """The config's word for one of torch's own values."""
    if isinstance(value, (torch.dtype, torch.device)):
        return str(value).removeprefix("torch.")
    return value

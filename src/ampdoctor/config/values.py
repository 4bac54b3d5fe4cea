"""What sections of the config are made of: the mapping itself, and values that say what is wrong."""

from __future__ import annotations

import os
import re
from typing import Annotated

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_validator,
)

from ampdoctor.facts.words import SEVERITIES

_LONGEST_NAME = 255
"""Bytes of one name, on every common file system."""


def _check_path(value: str) -> str:
    try:
        name = os.fsencode(value)
    except UnicodeEncodeError:
        name = b"\0"  # half a character, which YAML can spell
    if b"\0" in name or max(len(part) for part in name.split(b"/")) > _LONGEST_NAME:
        raise ValueError("no file can have this name")
    return value


def _check_target(value: str) -> str:
    _check_path(value.rpartition(":")[0])
    place, colon, name = value.rpartition(":")
    if not colon or not place.strip() or not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(f"'{value}' is no target; write file.py:name or package.module:name")
    return value


def _check_code(value: str) -> str:
    if not re.fullmatch(r"AMP\d{0,3}", value):
        raise ValueError(f"'{value}' is no rule code; write AMP101, or AMP1 for all that start so")
    return value


def _check_fail_on(value: str) -> str:
    if value in SEVERITIES or re.fullmatch(r"AMP\d{0,3}", value):
        return value
    raise ValueError(f"'{value}' is neither a severity ({', '.join(SEVERITIES)}) nor a rule code (AMP101)")


def _check_device(value: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,2})?", value):
        hint = "; did you mean 'cuda'?" if value.lower().startswith(("gpu", "cuda")) else ""
        raise ValueError(f"'{value}' is not allowed{hint} (allowed: auto, cpu, cuda, cuda:1)")
    return value


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError(f"expected a number, got {str(value).lower()}")
    return value


# the patterns are for editors; the validators know Python's identifiers, and say what is wrong
_WORD = r"[^\s:.\d][^\s:.]*"
Target = Annotated[
    str,
    AfterValidator(_check_target),
    WithJsonSchema({"type": "string", "pattern": rf"\S.*:{_WORD}(\.{_WORD})*$"}),
]
FilePath = Annotated[str, AfterValidator(_check_path)]
RuleCode = Annotated[
    str, AfterValidator(_check_code), WithJsonSchema({"type": "string", "pattern": r"^AMP\d{0,3}$"})
]
FailOn = Annotated[
    str,
    AfterValidator(_check_fail_on),
    WithJsonSchema({"anyOf": [{"enum": [*SEVERITIES]}, {"type": "string", "pattern": r"^AMP\d{0,3}$"}]}),
]
Device = Annotated[
    str,
    AfterValidator(_check_device),
    WithJsonSchema(
        {"anyOf": [{"enum": ["auto", "cpu", "cuda"]}, {"type": "string", "pattern": r"^cuda:\d{1,2}$"}]}
    ),
]
Number = Annotated[float, BeforeValidator(_no_bool), Field(allow_inf_nan=False)]
WholeNumber = Annotated[int, BeforeValidator(_no_bool)]


class Section(BaseModel):
    """One mapping of the config. A key without a value (``loss:``) counts as left out."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, value: object) -> object:
        if isinstance(value, dict):
            return {k: v for k, v in value.items() if v is not None or k not in cls.model_fields}
        return value

"""Frozen dataclasses to JSON and back, along their type hints, by pydantic.

A field added with a default stays readable in older files, and a key this version does not know is passed
over. Nothing is converted on reading: a string is no number. Two things are ours, not pydantic's: numbers
that JSON has none of are the words of ``facts.plain``, and half a character (a surrogate, which the name of
a file may hold) is spelled out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import SchemaSerializer, SchemaValidator

from ampdoctor.facts.plain import number

T = TypeVar("T")


class FileError(ValueError):
    """A file that this version cannot read. The message is what to say after the file's name."""


@dataclass(frozen=True)
class _Header:
    """What every file begins with."""

    schema: Any = None
    """``ampdoctor.trace/1``: the format and its version."""


def to_bytes(value: Any, schema: str) -> bytes:
    """The dataclass as one line of JSON, which begins with its schema."""
    body = _serializer(type(value)).to_json(value, warnings="error")
    return b'{"schema":"%s",' % schema.encode() + body.removeprefix(b"{")


def to_plain(value: Any) -> Any:
    """The dataclass as dicts, lists, strings and numbers, without the keys that are None."""
    return _serializer(type(value)).to_python(value, mode="json", exclude_none=True)


def from_bytes(cls: type[T], data: bytes, schema: str) -> T:
    """The dataclass that the JSON holds. Raises FileError for a foreign, damaged or newer file."""
    _check_schema(data, schema)
    try:
        value: T = _validator(cls).validate_json(data)
    except ValidationError as error:
        raise FileError(f"is damaged: {_sentence(error)}") from error
    return value


def _check_schema(data: bytes, schema: str) -> None:
    form = schema.partition("/")[0]
    what = form.removeprefix("ampdoctor.")
    try:
        found = _validator(_Header).validate_json(data).schema
    except ValidationError as error:
        if error.errors()[0]["type"] == "json_invalid":
            raise FileError(f"is not a {what}: it holds no readable JSON ({_sentence(error)})") from error
        found = None
    if found == schema:
        return
    if isinstance(found, str) and found.startswith(f"{form}/"):
        raise FileError(f'is a {what} of another version ("{found}"); this ampdoctor reads "{schema}"')
    has = 'it has no "schema"' if found is None else f'its "schema" is {found!r}'
    raise FileError(f'is not a {what} ("{schema}" was expected): {has}')


def _validator(cls: Any) -> SchemaValidator:
    return _codec(cls)[0]


def _serializer(cls: Any) -> SchemaSerializer:
    return _codec(cls)[1]


@cache
def _codec(cls: Any) -> tuple[SchemaValidator, SchemaSerializer]:
    schema = _in_our_words(TypeAdapter(cls).core_schema)
    return SchemaValidator(schema), SchemaSerializer(schema)


def _in_our_words(schema: Any) -> Any:
    """pydantic's schema with each scalar as ``_SCALARS`` has it."""
    if isinstance(schema, Mapping):
        ours = _SCALARS.get(str(schema.get("type")))
        return ours or {key: _in_our_words(part) for key, part in schema.items()}
    return [_in_our_words(part) for part in schema] if isinstance(schema, list) else schema


def _spelled_out(text: str) -> str:
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


_SCALARS: dict[str, dict[str, Any]] = {
    "int": {"type": "int", "strict": True},
    "bool": {"type": "bool", "strict": True},
    "str": {
        "type": "str",
        "strict": True,
        "serialization": {"type": "function-plain", "function": _spelled_out},
    },
    "float": {
        "type": "union",
        "mode": "left_to_right",
        "choices": [
            {"type": "float", "strict": True},
            {
                "type": "function-after",
                "schema": {"type": "literal", "expected": ["nan", "inf", "-inf"]},
                "function": {"type": "no-info", "function": float},
            },
        ],
        "custom_error_type": "number",
        "custom_error_message": "Input should be a number",
        "serialization": {"type": "function-plain", "function": number},
    },
}


def _sentence(error: ValidationError) -> str:
    """Where the first mistake is, and what should be there."""
    first = error.errors(include_url=False)[0]
    where = ""
    for part in first["loc"]:
        if isinstance(part, int):
            where += f"[{part}]"
        elif part == "[key]":
            where += " (the key)"
        else:
            where += ("." if where else "") + (part if part.isidentifier() else f'"{part}"')
    words = first["msg"].removeprefix("Input ").removeprefix("Invalid JSON: ")
    return f"{where} {'is missing' if first['type'] == 'missing' else words}".strip()

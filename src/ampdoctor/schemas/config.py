"""The JSON Schema of a config, generated from its pydantic models: editors complete the YAML with it."""

from __future__ import annotations

from typing import Any

from ampdoctor.config.schema import Config
from ampdoctor.schemas import DRAFT

Json = dict[str, Any]

_BOUNDS = {"ge": "minimum", "le": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}
"""Where a validator runs before a bound is checked, pydantic leaves the bound under its own name."""


def config_schema() -> Json:
    """What a config may hold. Stricter than the reader in one thing: a number in quotes is none."""
    generated = Config.model_json_schema()
    definitions = generated.pop("$defs")
    body = _section(generated)
    return {
        "$schema": DRAFT,
        "title": "A config of ampdoctor, version 1",
        **body,
        "$defs": {name: _section(schema) for name, schema in sorted(definitions.items())},
    }


def _section(schema: Json) -> Json:
    """One mapping of the config; a key without a value counts as left out where it may be."""
    section = _plain(schema)
    required = section.get("required", ())
    section["properties"] = {
        name: _plain(part) if name in required else _or_nothing(_plain(part))
        for name, part in schema.get("properties", {}).items()
    }
    return section


def _or_nothing(schema: Json) -> Json:
    """The schema with null allowed; its description and default stay outside, where editors look."""
    choices = schema.pop("anyOf", None)
    outside: Json = {key: schema.pop(key) for key in ("description", "default") if key in schema}
    choices = choices or [schema]
    nothing = {"type": "null"}
    return {**outside, "anyOf": choices if nothing in choices else [*choices, nothing]}


def _plain(schema: Json) -> Json:
    """The schema without pydantic's titles, with bounds under JSON Schema's names and prose as Markdown."""
    result: Json = {}
    for key, part in schema.items():
        if key == "title" or (key == "default" and part is None):
            continue
        if key == "description":
            part = " ".join(part.split()).replace("``", "`")
        elif isinstance(part, dict) and key not in (
            "properties",
            "default",
        ):  # those hold names, not keywords
            part = _plain(part)
        elif isinstance(part, list):
            part = [_plain(each) if isinstance(each, dict) else each for each in part]
        result[_BOUNDS.get(key, key)] = part
    return result

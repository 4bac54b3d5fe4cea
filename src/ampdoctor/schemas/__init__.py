"""JSON Schemas (draft 2020-12) of what ampdoctor reads and writes: generated from the code, kept as files."""

from __future__ import annotations

from importlib.resources import files

NAMES = ("report", "config", "run", "prescription")
DRAFT = "https://json-schema.org/draft/2020-12/schema"


def schema_text(name: str) -> str:
    """The schema as it is shipped: the JSON of a report or a prescription, or the YAML of a config."""
    return files(__name__).joinpath(f"{name}.schema.json").read_text(encoding="utf-8")

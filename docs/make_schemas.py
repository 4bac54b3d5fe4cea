"""Writes the schemas that are shipped, from the code they describe. ``make schemas`` runs it."""

from __future__ import annotations

import json
from pathlib import Path

import ampdoctor.schemas
from ampdoctor.schemas.config import config_schema
from ampdoctor.schemas.prescription import prescription_schema
from ampdoctor.schemas.report import report_schema
from ampdoctor.schemas.run import run_schema

FOLDER = Path(ampdoctor.schemas.__file__).parent

for name, schema in (
    ("report", report_schema()),
    ("config", config_schema()),
    ("prescription", prescription_schema()),
    ("run", run_schema()),
):
    file = FOLDER / f"{name}.schema.json"
    file.write_text(json.dumps(schema, indent=2) + "\n", encoding="utf-8")
    print(f"wrote {file}")

"""The JSON Schema of the document ``ampdoctor.prescription/1``, generated from its dataclasses."""

from __future__ import annotations

from ampdoctor.remedy.prescription import SCHEMA, Prescription
from ampdoctor.schemas import DRAFT
from ampdoctor.schemas.from_types import Definitions, Json, whole


def prescription_schema() -> Json:
    """What ``Prescription.to_dict`` gives: the same keys in the same order, each with its meaning."""
    definitions = Definitions()
    document = {"schema": {"const": SCHEMA}, **definitions.properties(Prescription)}
    body = whole(document, "Keys may be added within this version; none is removed or changed.")
    title = f"{SCHEMA}: treatments that were run and hold"
    return {"$schema": DRAFT, "title": title, **body, "$defs": definitions.used_by(body)}

"""The JSON Schema of the document ``ampdoctor.report/1``, generated from the dataclasses of the report."""

from __future__ import annotations

from ampdoctor.diagnose.report import SCHEMA, FirstFault, ParameterRow, Report
from ampdoctor.facts.environment import Environment
from ampdoctor.schemas import DRAFT
from ampdoctor.schemas.from_types import Definitions, Json, class_doc, described, nullable, whole


def report_schema() -> Json:
    """What ``Report.to_dict`` gives: the same keys in the same order, each with its meaning."""
    definitions = Definitions()
    own = definitions.properties(Report)
    environment = _renamed(
        definitions.properties(Environment), {"tool_version": None, "torch_version": "torch"}
    )
    environment["seed"] = own.pop("seed")
    special: dict[str, Json] = {
        "environment": whole(environment, class_doc(Environment)),
        "first_fault": nullable(_first_fault(definitions)),
        "headline": described({"type": "string"}, Report.sentence.__doc__ or ""),
        "parameters": {"type": "array", "items": _parameter(definitions)},
    }
    own |= special
    keys = _renamed(own, {"headline": "summary", "config": None})
    document = {
        "schema": {"const": SCHEMA},
        "tool": whole({"version": {"type": "string"}}),
        **keys,
    }
    body = whole(document, "Keys may be added within this version; none is removed or changed.")
    title = f"{SCHEMA}: the report of a scan"
    return {"$schema": DRAFT, "title": title, **body, "$defs": definitions.used_by(body)}


def _first_fault(definitions: Definitions) -> Json:
    fault = definitions.properties(FirstFault)
    fault["sample"] = described({"type": ["integer", "null"]}, FirstFault.sample.__doc__ or "")
    fault["numel"] = described({"type": "integer"}, FirstFault.numel.__doc__ or "")
    steps = {"type": "array", "items": {"type": "string"}}
    fault["path"] = described(steps, "The ops that the value went through, in words.")
    return whole(fault, class_doc(FirstFault))


def _parameter(definitions: Definitions) -> Json:
    gradient = definitions.properties(ParameterRow)
    own = {key: gradient.pop(key) for key in ("name", "noise")}
    return whole({**own, "gradient": whole(gradient)}, class_doc(ParameterRow))


def _renamed(schemas: dict[str, Json], names: dict[str, str | None]) -> dict[str, Json]:
    """The schemas under the document's names; those renamed to None are not in it."""
    renamed = ((names.get(name, name), schema) for name, schema in schemas.items())
    return {name: schema for name, schema in renamed if name is not None}

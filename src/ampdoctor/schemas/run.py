"""The JSON Schema of the document ``ampdoctor.run/1``, generated from the dataclasses of the run's report."""

from __future__ import annotations

from ampdoctor.diagnose.report import SCHEMA as REPORT
from ampdoctor.diagnose.run_report import SCHEMA, Examined, RunReport
from ampdoctor.schemas import DRAFT
from ampdoctor.schemas.from_types import Definitions, Json, class_doc, described, whole


def run_schema() -> Json:
    """What ``RunReport.to_dict`` gives: the same keys in the same order, each with its meaning."""
    definitions = Definitions()
    own = definitions.fields(
        RunReport, "script", "done", "skipped", "timeline", "findings", "not_seen", "stopped"
    )
    examined = definitions.fields(Examined, "step", "why", "name")
    examined["report"] = described({"type": "object"}, f"The document {REPORT} of this step.")
    body = whole(
        {
            "schema": {"const": SCHEMA},
            "tool": whole({"version": {"type": "string"}}),
            "script": own["script"],
            "summary": described({"type": "string"}, RunReport.headline.__doc__ or ""),
            "steps": whole({"done": own["done"], "skipped": own["skipped"]}),
            "timeline": own["timeline"],
            "examined": {"type": "array", "items": whole(examined, class_doc(Examined))},
            "findings": described(own["findings"], RunReport.all_findings.__doc__ or ""),
            "not_seen": own["not_seen"],
            "stopped": own["stopped"],
        },
        "Keys may be added within this version; none is removed or changed.",
    )
    title = f"{SCHEMA}: the report of a training script's run"
    return {"$schema": DRAFT, "title": title, **body, "$defs": definitions.used_by(body)}

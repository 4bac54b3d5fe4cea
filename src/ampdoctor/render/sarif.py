"""The report as SARIF 2.1.0: for code scanning on GitHub, and for editors and CI services that read it."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from ampdoctor.diagnose.report import FirstFault, Report
from ampdoctor.diagnose.rule import Rule
from ampdoctor.diagnose.rules import RULES
from ampdoctor.diagnose.wording import place, short_op
from ampdoctor.facts.plain import to_json
from ampdoctor.facts.site import Source
from ampdoctor.render.findings_text import waiver_words
from ampdoctor.render.options import Options
from ampdoctor.render.places import Place, place_of, repository_file, subject
from ampdoctor.render.problems import Problem, problems_of
from ampdoctor.render.rule_page import first_paragraph, page_markdown
from ampdoctor.render.words import plain

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {"error": "error", "warning": "warning", "info": "note"}
_ROOT = "%SRCROOT%"
_ABOUT_THE_MEASUREMENT = "AMP9"

Json = dict[str, Any]


def render(report: Report, options: Options) -> str:
    """The log with one run, in ASCII, with a newline at its end."""
    return render_many((report,), options)


def render_many(reports: Sequence[Report], options: Options) -> str:
    """The log with a run per report."""
    log = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [_run(report, options) for report in reports],
    }
    return json.dumps(log, indent=2, allow_nan=False) + "\n"


def _run(report: Report, options: Options) -> Json:
    problems = problems_of(report)
    results = [_result(p, report, options) for p in problems if not _is_doubt(p)]
    return {
        "tool": {"driver": _driver(report)},
        # a category of its own for every config: else the one would close the other's alerts
        "automationDetails": {"id": f"ampdoctor/{plain(subject(report, options))}/"},
        "originalUriBaseIds": {_ROOT: {"description": {"text": "The root of the repository."}}},
        "invocations": [_invocation(report, [p for p in problems if _is_doubt(p)])],
        "columnKind": "utf16CodeUnits",
        "results": _numbered(results),
        "properties": {
            "verdict": report.verdict,
            "summary": plain(report.sentence),
            "environment": to_json(report.environment),
        },
    }


def _is_doubt(problem: Problem) -> bool:
    """True for what is no fault of the code: that CUDA was emulated is no alert to close."""
    return problem.level == "info" and problem.code.startswith(_ABOUT_THE_MEASUREMENT)


def _driver(report: Report) -> Json:
    return {
        "name": "ampdoctor",
        "semanticVersion": report.environment.tool_version,
        "rules": [_rule(rule) for rule in RULES],
    }


def _rule(rule: Rule) -> Json:
    return {
        "id": rule.code,
        "name": "".join(word.capitalize() for word in rule.title.split() if word.isalnum()),
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": first_paragraph(rule)},
        "help": {"text": rule.page.strip(), "markdown": page_markdown(rule)},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
        "properties": {"tags": ["mixed-precision", "pytorch"]},
    }


def _invocation(report: Report, doubts: Sequence[Problem]) -> Json:
    """How the measurement went, with what could not be measured."""
    notifications = [
        {
            "level": _LEVELS[doubt.level],
            "message": {"text": plain(doubt.message)},
            "associatedRule": {"id": doubt.code, "index": _RULE_INDEX[doubt.code]},
        }
        for doubt in doubts
    ]
    notifications += [
        {"level": "warning", "message": {"text": plain(f"Waiver {waiver_words(waiver)}.")}}
        for waiver in report.waivers
        if waiver.state != "used"
    ]
    measured = report.verdict != "not-measured" and not report.interrupted
    if not measured:
        notifications.append({"level": "error", "message": {"text": plain(report.sentence)}})
    return {"executionSuccessful": measured, "toolExecutionNotifications": notifications}


_RULE_INDEX = {rule.code: index for index, rule in enumerate(RULES)}


def _result(problem: Problem, report: Report, options: Options) -> Json:
    where = f"{place(problem.module)}: " if problem.module or problem.op else ""
    result: Json = {
        "ruleId": problem.code,
        "level": _LEVELS[problem.level],
        "message": {"text": _literal(f"{where}{problem.message} {problem.remedy}".rstrip())},
        "locations": [_primary(problem, report, options)],
        "partialFingerprints": {"ampdoctorFinding/v1": _fingerprint(problem)},
    }
    if problem.code in _RULE_INDEX:
        result["ruleIndex"] = _RULE_INDEX[problem.code]
    real = _physical(problem.source, options)
    if real is not None and result["locations"][0]["physicalLocation"] != real:
        result["relatedLocations"] = [{"physicalLocation": real, "message": {"text": "It happens here."}}]
    if problem.accepted is not None:
        accepted = problem.accepted
        reason = plain(accepted.reason) or f"accepted by the {accepted.by}"
        result["suppressions"] = [{"kind": "external", "status": "accepted", "justification": reason}]
    if problem.finding is not None:
        result["properties"] = {"op": problem.op, "evidence": to_json(problem.finding.evidence)}
    flow = list(_flow(problem, report.first_fault, options))
    if flow:
        result["codeFlows"] = [{"threadFlows": [{"locations": flow}]}]
    return result


def _primary(problem: Problem, report: Report, options: Options) -> Json:
    """Where to show it. GitHub refuses a whole log for one result without a file: this always has one."""
    location: Json = {"physicalLocation": _physical(problem.source, options)}
    at = place_of(problem.source, report, options)
    if at is not None and not _is_inside(problem.source, options):  # the config
        location["physicalLocation"] = _in_repository(at)
    if location["physicalLocation"] is None:
        # nothing but a name is known: the model's file, or the name of the config
        file = plain(report.environment.title.partition(":")[0]) or "ampdoctor"
        location["physicalLocation"] = _in_repository(Place(file, 1))
    if problem.module:
        name = plain(problem.module)
        leaf = name.rpartition(".")[2] or name
        location["logicalLocations"] = [{"name": leaf, "fullyQualifiedName": name, "kind": "module"}]
    return location


def _is_inside(source: Source | None, options: Options) -> bool:
    return source is not None and repository_file(source.file, options) is not None


def _physical(source: Source | None, options: Options) -> Json | None:
    """The line, in the repository or elsewhere on this machine; None for code that is in no file."""
    if source is None:
        return None
    file = repository_file(source.file, options)
    if file is not None:
        location = _in_repository(Place(file, source.line))
    elif PurePath(source.file).is_absolute():
        path = PurePath(source.file).as_posix().removeprefix("/")
        location = {"artifactLocation": {"uri": f"file:///{_quoted(path)}"}, "region": _region(source.line)}
    else:
        return None
    if source.text:
        location["region"]["snippet"] = {"text": plain(source.text)}
    return location


def _in_repository(at: Place) -> Json:
    return {
        "artifactLocation": {"uri": _quoted(at.file), "uriBaseId": _ROOT},
        "region": _region(at.line),
    }


def _quoted(path: str) -> str:
    return quote(path, safe="/:", errors="surrogatepass")


def _region(line: int) -> Json:
    return {"startLine": max(line, 1)}


def _flow(problem: Problem, fault: FirstFault | None, options: Options) -> Iterator[Json]:
    """The way of the first fault from birth to loss or gradient; nothing for another problem."""
    if fault is None or not fault.path:
        return
    if (problem.module, problem.op, problem.source) != (fault.module, fault.op, fault.source):
        return
    if fault.root is not None:
        text = f"became zero in {place(fault.root.site.module)} {short_op(fault.root.site.op)}"
        yield from _flow_step(fault.root.source, text, options, "essential")
    born = f"{fault.value} is born in {place(fault.module)} {short_op(fault.op)}"
    yield from _flow_step(fault.source, born, options, "essential")
    for step in fault.path:
        backward = " backward" if step.phase == "backward" else ""
        text = f"{place(step.module)} {short_op(step.op)}{backward}: {step.value}"
        yield from _flow_step(step.source, text, options, "important")


def _flow_step(source: Source | None, text: str, options: Options, importance: str) -> Iterator[Json]:
    """The step, where its line is known: readers want every step at one."""
    physical = _physical(source, options)
    if physical is not None:
        location = {"physicalLocation": physical, "message": {"text": plain(text)}}
        yield {"location": location, "importance": importance}


def _fingerprint(problem: Problem) -> str:
    """The same for the same fault, though its line has moved."""
    source = problem.source
    text = source.text or source.function if source is not None else ""
    parts = (problem.code, problem.module, problem.op, text)
    return hashlib.sha256("\0".join(parts).encode("utf-8", "backslashreplace")).hexdigest()[:32]


def _numbered(results: list[Json]) -> list[Json]:
    """The results, told apart where the same line of code stands in a module twice."""
    seen: Counter[str] = Counter()
    for result in results:
        prints = result["partialFingerprints"]
        for name, value in prints.items():
            seen[value] += 1
            prints[name] = f"{value}:{seen[value]}"
    return results


def _literal(text: str) -> str:
    """The text as a message, in which ``[words](target)`` would be a link."""
    return re.sub(r"\[(?=[^\]]*\]\()", r"\\[", plain(text))

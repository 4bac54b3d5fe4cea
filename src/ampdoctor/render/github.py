"""Annotations in the log of a GitHub job: the ten worst findings, each at its line of the pull request."""

from __future__ import annotations

from collections.abc import Sequence

from ampdoctor.diagnose.report import Report
from ampdoctor.diagnose.wording import count_words, listing, place
from ampdoctor.render.findings_text import waiver_words
from ampdoctor.render.gate_markdown import STATUS_WORDS
from ampdoctor.render.options import Options
from ampdoctor.render.places import Place, place_of, source_words, subject
from ampdoctor.render.problems import Problem, problems_of
from ampdoctor.render.words import plain

MOST = 10
"""GitHub shows no more annotations of a kind from one step, and drops the others."""


def render(report: Report, options: Options) -> str:
    """Workflow commands and a line of log, with a newline at its end."""
    return render_many((report,), options)


def render_many(reports: Sequence[Report], options: Options) -> str:
    """A line of log per report, then workflow commands for the ten worst problems of them all."""
    lines = [_log_line(report, options) for report in reports]
    commands = [_unmeasured(report, options) for report in reports if report.verdict == "not-measured"]
    commands += _commands(reports, options)
    commands += [command for report in reports for command in _waivers(report, options)]
    lines += commands[:MOST]
    if len(commands) > MOST:
        lines.append(f"ampdoctor: {count_words(len(commands) - MOST, 'finding')} more in the job's summary")
    return "\n".join(lines) + "\n"


def _log_line(report: Report, options: Options) -> str:
    gate = f"gate {STATUS_WORDS[report.gate.status]}. " if report.gate is not None else ""
    return plain(f"ampdoctor: {subject(report, options)}: {gate}{report.sentence}")


def _waivers(report: Report, options: Options) -> list[str]:
    """A warning at the config for each of its waivers that does nothing any more."""
    idle = (waiver for waiver in report.waivers if waiver.state != "used")
    at = place_of(None, report, options)
    return [_command("warning", f"waiver {w.state}", plain(waiver_words(w)), at) for w in idle]


def _unmeasured(report: Report, options: Options) -> str:
    message = plain(f"{subject(report, options)}: {report.sentence}")
    return _command("error", "nothing was measured", message, place_of(None, report, options))


def _commands(reports: Sequence[Report], options: Options) -> list[str]:
    """Errors, then warnings. Scans that share a faulty line share an annotation: there are only ten."""
    found: dict[tuple[object, ...], list[tuple[Problem, Report]]] = {}
    for report in reports:
        for problem in problems_of(report):
            if problem.level != "info":
                at = place_of(problem.source, report, options)
                key = (problem.code, problem.level, problem.module, problem.op, problem.source, at)
                found.setdefault(key, []).append((problem, report))
    groups = sorted(found.values(), key=lambda group: group[0][0].level != "error")
    return [_annotation(group, options, several=len(reports) > 1) for group in groups]


def _annotation(group: Sequence[tuple[Problem, Report]], options: Options, several: bool) -> str:
    """Where, what and what to do, each on its line, at the place of the first report."""
    problem, report = group[0]
    where = place(problem.module) if problem.module or problem.op else ""
    scans = dict.fromkeys(subject(other, options) for _, other in group) if several else {}
    lines = (
        "   ".join(part for part in (where, source_words(problem.source, options)) if part),
        problem.message,
        problem.remedy,
        f"Found by {listing(list(scans))}." if scans else "",
        f"ampdoctor explain {problem.code}",
    )
    message = "\n".join(plain(line) for line in lines if line)
    title = f"{problem.code} {problem.title}"
    return _command(problem.level, title, message, place_of(problem.source, report, options))


def _command(level: str, title: str, message: str, at: Place | None) -> str:
    """``::error file=model.py,line=33,title=AMP101 forward overflow::message``."""
    properties = [("file", _file(at.file)), ("line", str(at.line))] if at is not None else []
    properties.append(("title", plain(title)))
    return f"::{level} {','.join(f'{key}={_property(value)}' for key, value in properties)}::{_data(message)}"


def _file(name: str) -> str:
    """The file's name, with what a terminal would act on written out but for line ends, which are encoded."""
    return "".join(c if c in "\r\n" else plain(c) for c in name)


def _data(text: str) -> str:
    """The text as the message of a workflow command, which ends with its line."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """The text as a property of a workflow command, which ends at a comma or a colon."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")

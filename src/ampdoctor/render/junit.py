"""The report as JUnit XML: a test case per scan, rule and module, for the test pages of CI services."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ampdoctor.diagnose.report import Report
from ampdoctor.diagnose.wording import place
from ampdoctor.errors import ConfigError
from ampdoctor.render.options import Options
from ampdoctor.render.places import source_words, subject
from ampdoctor.render.problems import TITLES, Problem, problems_of
from ampdoctor.render.words import plain

if TYPE_CHECKING:
    from junitparser import Error, Failure, Skipped, TestCase, TestSuite


def render(report: Report, options: Options) -> str:
    """The XML with one suite."""
    return render_many((report,), options)


def render_many(reports: Sequence[Report], options: Options) -> str:
    """The XML with a suite per report. Raises ConfigError where junitparser is not installed."""
    try:
        from junitparser import JUnitXml
    except ImportError as error:
        raise ConfigError(
            "the format junit needs the package junitparser", 'pip install "ampdoctor[junit]" brings it'
        ) from error
    xml = JUnitXml("ampdoctor")
    for report in reports:
        xml.append(_suite(report, options))  # add_testsuite would merge two of the same name
    xml.update_statistics()
    file = io.BytesIO()
    xml.write(file, pretty=True)
    return file.getvalue().decode()


def _suite(report: Report, options: Options) -> TestSuite:
    """Cases for what was found, and one that passes for every rule that ran and found nothing."""
    from junitparser import TestSuite

    scan = plain(subject(report, options))
    suite = TestSuite(scan)
    environment = report.environment
    for name, value in (
        ("verdict", report.verdict),
        ("summary", report.sentence),
        ("ampdoctor", environment.tool_version),
        ("torch", environment.torch_version),
        ("device", environment.device),
        ("emulates", environment.emulates or "nothing"),
        ("precision", f"{environment.mode} {environment.dtype}"),
    ):
        suite.add_property(name, plain(value))
    measured = report.verdict != "not-measured"
    groups: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems_of(report):
        groups.setdefault((problem.code, problem.module), []).append(problem)
    found = {code for code, _ in groups}
    cases = {(code, ""): _case(scan, code) for code in report.rules if measured and code not in found}
    cases |= {key: _case_of(group, scan, options) for key, group in groups.items()}
    suite.add_testcases([cases[key] for key in sorted(cases)])
    if not measured or report.interrupted or not cases:
        suite.add_testcase(_measurement(report, scan))
    next(iter(suite)).time = round(report.seconds, 3)  # so that the suite's sum is what the scan took
    return suite


def _case(scan: str, code: str, module: str = "") -> TestCase:
    """A case that passes. Its name holds no line, so that its history survives edits."""
    from junitparser import TestCase

    title = TITLES.get(code, code)
    name = f"{title} in {module}" if module else title
    return TestCase(plain(name), f"{scan}.{code}")


def _case_of(group: Sequence[Problem], scan: str, options: Options) -> TestCase:
    """A rule's problems in one module as one case: as bad as the worst of them."""
    worst = min(group, key=lambda problem: _OUTCOMES.index(problem.outcome))
    case = _case(scan, worst.code, place(worst.module) if worst.module or worst.op else "")
    text = "\n\n".join(_words(problem, options) for problem in group)
    result = _result(worst)
    if result is None:
        case.system_out = text
    else:
        result.text = text
        case.result = result
    return case


_OUTCOMES = ("failed", "not-measured", "noted")


def _result(problem: Problem) -> Error | Failure | Skipped | None:
    """JUnit knows no warning: a skipped case is what its readers show as neither good nor bad."""
    from junitparser import Error, Failure, Skipped

    headline = plain(problem.message)
    if problem.outcome == "failed":
        return Failure(headline, problem.code)
    if problem.outcome == "not-measured":
        return Error(headline, problem.code)
    if problem.accepted is not None:
        accepted = problem.accepted
        return Skipped(plain(f"accepted by the {accepted.by}: {accepted.reason}".rstrip(" :")), problem.code)
    return Skipped(f"warning: {headline}", problem.code) if problem.level == "warning" else None


def _words(problem: Problem, options: Options) -> str:
    """Where, what and what to do, a line each."""
    where = place(problem.module) if problem.module or problem.op else ""
    at = source_words(problem.source, options)
    code_line = problem.source.text if problem.source is not None else ""
    lines = (
        f"{problem.level} {problem.code} {problem.title}",
        "   ".join(part for part in (where, problem.op) if part),
        "   ".join(part for part in (at, code_line) if part),
        problem.message,
        problem.remedy,
        f"ampdoctor explain {problem.code}",
    )
    return "\n".join(plain(line) for line in lines if line)


def _measurement(report: Report, scan: str) -> TestCase:
    """A case that says whether there is anything to trust here at all."""
    from junitparser import Error, TestCase

    case = TestCase("the measurement", scan)
    if report.verdict == "not-measured":
        case.result = Error(plain(report.sentence), "not-measured")
    elif report.interrupted:
        case.result = Error("interrupted: what came after was not measured", "interrupted")
    return case

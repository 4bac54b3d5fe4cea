"""A rule: a code, a page of documentation, and a check that turns a reading into findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.verdict import Reading
from ampdoctor.facts.words import Severity


@dataclass(frozen=True)
class Rule:
    """One rule, one file in ``rules/``; its module docstring is the page ``ampdoctor explain`` prints."""

    code: str
    title: str
    severity: Severity
    """The severity of its findings where they matter."""
    page: str
    check: Callable[[Reading], Iterable[Finding]]

"""The diagnosis as Python code holds it: the report, and how it shows itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from pathlib import Path

from ampdoctor.diagnose import report as diagnosis
from ampdoctor.facts.excerpt import read_excerpt
from ampdoctor.render import FORMATS, Options


class Report(diagnosis.Report):
    """A diagnosis that can be printed, shown in a notebook and written as JSON. Its fields are plain data."""

    @classmethod
    def of(cls, report: diagnosis.Report) -> Report:
        """The same report."""
        return cls(**{field.name: getattr(report, field.name) for field in fields(report)})

    def to_json(self) -> str:
        """The document ``ampdoctor.report/1``."""
        return self._as("json")

    def __str__(self) -> str:
        """The terminal's report, without colours."""
        return self._as("text").rstrip("\n")

    def __repr__(self) -> str:
        """``<Report forward-overflow: 1 error, 2 infos>``: the whole would fill pages."""
        counts = Counter(finding.severity for finding in self.findings)
        words = [f"{n} {severity}{'s' if n > 1 else ''}" for severity, n in counts.items()]
        return f"<Report {self.verdict}: {', '.join(words) or 'no findings'}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the HTML report, without the page around it."""
        from ampdoctor.render.html import fragment

        return fragment(self, _options())

    def _as(self, name: str) -> str:
        return FORMATS[name](self, _options())


def _options() -> Options:
    return Options(base=str(Path.cwd()), excerpt=read_excerpt)

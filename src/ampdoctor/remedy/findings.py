"""The findings of a scan, each with the treatment that was seen to take it away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ampdoctor.diagnose.report import Finding
from ampdoctor.remedy.plan import plan_words
from ampdoctor.remedy.plan_file import plan_text
from ampdoctor.remedy.prescription import Treatment


def remedied(
    findings: Sequence[Finding], treatments: Sequence[Treatment], left: Mapping[str, Sequence[Finding]]
) -> tuple[Finding, ...]:
    """The findings; the remedy of one that is gone in the scan under a treatment is the first such one.

    ``left``: {plan as text: the findings of the scan under it}. Information keeps its remedy.
    """

    def remedy(finding: Finding) -> str:
        for treatment in treatments:
            then = left.get(plan_text(treatment.plan))
            if then is not None and not any(_key(f) == _key(finding) for f in then):
                return f"Proven by a scan: {plan_words(treatment.plan, bool(treatment.minimal))}."
        return finding.remedy

    return tuple(f if f.severity == "info" else replace(f, remedy=remedy(f)) for f in findings)


def _key(finding: Finding) -> tuple[str, str, str]:
    return finding.code, finding.module, finding.op

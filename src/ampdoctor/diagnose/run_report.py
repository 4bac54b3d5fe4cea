"""What was found in a training script that ran: its loop's own faults, and the steps that were examined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ampdoctor.diagnose.headline import Headline
from ampdoctor.diagnose.loop.rules import LOOP_RULES, OF_BOTH
from ampdoctor.diagnose.policy import Policy
from ampdoctor.diagnose.report import Finding, Report
from ampdoctor.diagnose.unmeasured import unmeasured
from ampdoctor.diagnose.wording import count_words
from ampdoctor.facts.loop import LoopTrace, Moment
from ampdoctor.facts.plain import to_json
from ampdoctor.facts.words import SEVERITIES, Examination

SCHEMA = "ampdoctor.run/1"


@dataclass(frozen=True)
class Examined:
    """One step that was run again in both precisions."""

    step: int
    why: Examination
    name: str
    """Of the loss, where a step has several: the variable or line of its backward."""
    report: Report


@dataclass(frozen=True)
class RunReport:
    """The whole diagnosis of one run of a script."""

    script: str
    done: int
    """Steps whose optimizer had its turn."""
    skipped: int
    """Of those, the ones that the scaler skipped."""
    timeline: tuple[Moment, ...]
    examined: tuple[Examined, ...]
    findings: tuple[Finding, ...]
    """The loop's own, errors first."""
    not_seen: tuple[str, ...]
    stopped: str
    """Why the script did not run to its end; '' where it did."""
    tool_version: str

    @property
    def all_findings(self) -> tuple[Finding, ...]:
        """The loop's and those of the examined steps, errors first."""
        everything = [*self.findings, *(f for e in self.examined for f in e.report.findings)]
        return tuple(sorted(everything, key=lambda f: SEVERITIES.index(f.severity)))

    @property
    def sound(self) -> bool:
        """Steps were seen, and nothing in the loop or in an examined step is wrong."""
        urgent = any(f.severity != "info" for f in self.findings)
        clean = all(e.report.verdict == "clean" for e in self.examined)
        return self.done > 0 and not urgent and clean and not self._skips_for_others

    @property
    def _skips_for_others(self) -> bool:
        """Every step was skipped, more than the scaler has to for the one that was examined and is clean."""
        needed = [e.report.loss_scale.skips or 0 for e in self.examined]
        return self.skipped == self.done > max(needed, default=self.done)

    @property
    def headline(self) -> Headline:
        """What was found, in one sentence."""
        urgent = [f for f in self.findings if f.severity != "info"]
        start = f"{count_words(self.done, 'step')}, {self.skipped:,} skipped."
        if urgent:
            return Headline("FAULT IN THE LOOP:", f"{urgent[0].title}. {start}")
        bad = [e for e in self.examined if e.report.verdict not in ("clean", "not-measured")]
        if bad:
            return bad[0].report.headline
        if not self.done:
            return Headline("NOT MEASURED.", "No optimizer had a turn while the script ran.")
        if not self.examined:
            return Headline("NOTHING WRONG IN THE LOOP.", f"No step could be examined. {start}")
        if self._skips_for_others:
            return Headline(
                "EVERY STEP IS SKIPPED,",
                f"and the one examined is finite in itself. {start} What makes its gradients infinite comes "
                "from elsewhere: another rank, whose own report says what; another backward; or a hook.",
            )
        return Headline("NOTHING WRONG.", start)

    @property
    def sentence(self) -> str:
        """The headline as text."""
        return str(self.headline)

    def to_dict(self) -> dict[str, Any]:
        """The document ``ampdoctor.run/1``: None where a figure does not exist, NaN and inf as words."""
        return {
            "schema": SCHEMA,
            "tool": {"version": self.tool_version},
            "script": self.script,
            "summary": self.sentence,
            "steps": {"done": self.done, "skipped": self.skipped},
            "timeline": to_json(self.timeline),
            "examined": [
                {"step": e.step, "why": e.why, "name": e.name, "report": e.report.to_dict()}
                for e in self.examined
            ],
            "findings": to_json(self.all_findings),
            "not_seen": list(self.not_seen),
            "stopped": self.stopped,
        }

    def as_reports(self) -> tuple[Report, ...]:
        """The same as reports of scans, for formats that show those; the loop's findings are in the first."""
        reports = [
            replace(
                e.report,
                environment=replace(
                    e.report.environment, title=f"{self.script}, step {e.step} {e.name}".rstrip()
                ),
            )
            for e in self.examined
        ]
        if not reports:
            reports = [unmeasured(self.script, self.headline.rest, "not-measured", self.tool_version)]
        first = reports[0]
        merged = sorted((*self.findings, *first.findings), key=lambda f: SEVERITIES.index(f.severity))
        return (replace(first, findings=tuple(merged)), *reports[1:])


def diagnose_loop(trace: LoopTrace, policy: Policy) -> tuple[Finding, ...]:
    """What the loop's rules found, errors first."""
    found = [f for rule in (*LOOP_RULES, *OF_BOTH) if policy.applies(rule.code) for f in rule.check(trace)]
    return tuple(sorted(found, key=lambda f: SEVERITIES.index(f.severity)))


def run_report(
    trace: LoopTrace,
    done: int,
    skipped: int,
    examined: Sequence[Examined],
    policy: Policy,
    not_seen: Sequence[str],
    stopped: str,
    tool_version: str,
) -> RunReport:
    """The report on a run: its loop judged, its examined steps as they are."""
    unseen = list(not_seen)
    if trace.one_in > 1:
        unseen.append(f"of the timeline all but one in {trace.one_in:,} steps")
    if not trace.complete:
        unseen.append("events of the loop past the first 200,000")
    return RunReport(
        script=trace.script,
        done=done,
        skipped=skipped,
        timeline=trace.timeline,
        examined=tuple(examined),
        findings=diagnose_loop(trace, policy),
        not_seen=tuple(unseen),
        stopped=stopped,
        tool_version=tool_version,
    )

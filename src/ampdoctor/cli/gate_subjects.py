"""What a gate judges: configs to scan and saved traces, each whatever becomes of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ampdoctor.cli.baselines import (
    DEFAULT_BASELINE,
    check_baseline_writable,
    read_baseline,
    section_of,
)
from ampdoctor.cli.clock import today
from ampdoctor.cli.failure import bug_words, exit_words, explain_details, reason_of
from ampdoctor.cli.repository import path_from_here
from ampdoctor.cli.workloads import Recording, Script, Targets, config_of
from ampdoctor.diagnose.gate_result import EXIT_CODES, NOT_MEASURED
from ampdoctor.diagnose.policy import Policy
from ampdoctor.diagnose.report import Report
from ampdoctor.diagnose.unmeasured import unmeasured
from ampdoctor.errors import AmpDoctorError
from ampdoctor.facts.words import GateStatus
from ampdoctor.gate.baseline import Known, known_of
from ampdoctor.gate.evaluate import broken_limits, evaluate
from ampdoctor.gate.rules import GateRules
from ampdoctor.version import VERSION

if TYPE_CHECKING:
    from ampdoctor.config import Config


@dataclass(frozen=True)
class Subject:
    """One thing to judge: a config or options to scan, a trace with or without a config, a script."""

    config: Path | None
    trace: Path | None
    script: Script | None = None
    steps: int | None = None
    """Of the script: stop after so many."""
    targets: Targets = field(default_factory=Targets)
    """In a config's place."""

    @property
    def name(self) -> str:
        """As the user named it."""
        if self.script is not None:
            return self.script.program.target
        return str(self.trace or self.config or self.targets.model or "the command line")


@dataclass(frozen=True)
class GateOptions:
    """The options of the command that change how one subject is judged."""

    overrides: tuple[str, ...] = ()
    baseline: Path | None = None
    """None: the config's own."""
    update: bool = False
    """Accept everything, for a new baseline."""
    plan: Path | None = None
    """Measure under this treatment."""
    quiet: bool = False
    debug: bool = False


@dataclass(frozen=True)
class Judged:
    """One subject, and what the gate says of it."""

    subject: Subject
    report: Report
    """With its ``gate``."""
    baseline: Path | None = None
    """Where ``known`` goes."""
    section: str = ""
    known: Known | None = None
    """What a new baseline holds; None where none is asked for, and where nothing was measured."""

    @property
    def status(self) -> GateStatus:
        """The gate's word."""
        return self.report.gate.status if self.report.gate is not None else NOT_MEASURED


def judge_all(subjects: Sequence[Subject], options: GateOptions) -> list[Judged]:
    """Each subject judged; after an interruption the rest is not measured."""
    judged: list[Judged] = []
    for subject in subjects:
        if any(one.report.interrupted for one in judged):
            judged.append(_not_judged(subject, NOT_MEASURED, "The gate was interrupted before it."))
        else:
            judged += _judge_safely(subject, options, several=len(subjects) > 1)
    return judged


def _judge_safely(subject: Subject, options: GateOptions, several: bool) -> list[Judged]:
    """The subject judged; whatever it raises becomes a report that says so."""
    try:
        return _judge(subject, options)
    except AmpDoctorError as error:
        explain_details(error, options.debug, subject.name if several else "")
        status = next(status for status, code in EXIT_CODES.items() if code == error.exit_code)
        return [_not_judged(subject, status, reason_of(error))]
    except SystemExit as error:
        return [_not_judged(subject, NOT_MEASURED, exit_words(error))]
    except Exception as error:
        explain_details(error, options.debug, subject.name if several else "")
        return [_not_judged(subject, NOT_MEASURED, bug_words(error))]


def _judge(subject: Subject, options: GateOptions) -> list[Judged]:
    """Each report on the subject, judged; a script has one for each loss that was examined."""
    from ampdoctor.api.request import gate_rules_of, policy_of
    from ampdoctor.diagnose.engine import diagnose

    settings: Config | None = None
    recording = Recording.named(subject.config, subject.targets, options.overrides)
    rules, policy, baseline = GateRules(), Policy(), options.baseline or DEFAULT_BASELINE
    if recording is None and (subject.config is not None or subject.targets.options):
        settings = config_of(subject.config, subject.targets, options.overrides)
        baseline = options.baseline or settings.path(settings.gate.baseline)
    elif recording is not None or subject.script is not None:
        from ampdoctor.api.settings import config_of as config_of_script

        settings = config_of_script(subject.name, options.overrides)
    if settings is not None:
        rules, policy = gate_rules_of(settings), policy_of(settings, today())
    judge = _Judge(subject, options, rules, baseline, read_baseline(baseline))
    if options.update:
        check_baseline_writable(baseline)
    if subject.script is not None:
        from ampdoctor.cli.gate_script import script_reports

        reports = script_reports(subject.script, subject.steps, options.overrides, policy)
        return [judge(report) for report in reports]
    if subject.trace is not None:
        from ampdoctor.cli.report import read_saved

        trace = read_saved(subject.trace)
    else:
        from ampdoctor.cli.workloads import run_probe

        assert settings is not None  # a subject has a config, a trace or a script
        trace, _ = run_probe(recording or settings, options.quiet, options.plan)
    return [
        judge(diagnose(trace, policy, path_from_here(subject.config.absolute()) if subject.config else ""))
    ]


@dataclass(frozen=True)
class _Judge:
    """Judges a report on the subject by its rules, next to its baseline."""

    subject: Subject
    options: GateOptions
    rules: GateRules
    baseline: Path
    sections: Mapping[str, Known] | None

    def __call__(self, report: Report) -> Judged:
        section = section_of(self.subject.config, report.environment.title, self.baseline)
        shown = path_from_here(self.baseline.absolute())
        update = self.options.update
        if update and not report.interrupted and report.verdict != "not-measured":
            known = known_of(report, self.rules, broken_limits(report, self.rules))
            judged = evaluate(report, self.rules, known, shown)
            return Judged(self.subject, judged, self.baseline, section, known)
        known_here = None if self.sections is None or update else self.sections.get(section)
        judged = evaluate(report, self.rules, known_here, shown)
        if self.sections is not None and known_here is None and not update:
            judged = _with_note(judged, f"{shown} has no section for {section}: everything counts as new.")
        return Judged(self.subject, judged)


def _not_judged(subject: Subject, status: GateStatus, reason: str) -> Judged:
    config = path_from_here(subject.config.absolute()) if subject.config else ""
    return Judged(subject, unmeasured(subject.name, reason, status, VERSION, config))


def _with_note(report: Report, note: str) -> Report:
    assert report.gate is not None
    return replace(report, gate=replace(report.gate, notes=(*report.gate.notes, note)))

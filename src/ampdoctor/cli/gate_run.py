"""One run of the gate: what to judge, the documents, new baselines, and the reason it ends with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ampdoctor.cli.baselines import read_baseline, write_baselines
from ampdoctor.cli.exits import OK, Stop
from ampdoctor.cli.failure import say
from ampdoctor.cli.gate_output import documents_of, emit_gate
from ampdoctor.cli.gate_subjects import GateOptions, Judged, Subject, judge_all
from ampdoctor.cli.workloads import DEFAULT_CONFIG, Script, Targets
from ampdoctor.diagnose.gate_result import EXIT_CODES, FAILED, UNUSABLE
from ampdoctor.diagnose.wording import count_words, place, source_place
from ampdoctor.errors import ConfigError
from ampdoctor.gate.baseline import Known


def run_gate(
    configs: Sequence[Path],
    traces: Sequence[Path],
    targets: Targets,
    options: GateOptions,
    format_name: str,
    outputs: Sequence[str],
    script: Script | None = None,
    steps: int | None = None,
) -> None:
    """Nothing where all passed; Stop with the worst exit code otherwise. The documents are written."""
    subjects = subjects_of(configs, traces, targets, script, steps)
    if script is not None and options.plan is not None:
        raise ConfigError(f"--plan and {script.option} do not go together", "ampdoctor scan takes both")
    if options.overrides and subjects[0].trace is not None and subjects[0].config is None:
        raise ConfigError("--set changes a config, and there is none", "name the one the trace was made with")
    baseline = options.baseline
    if baseline is not None and read_baseline(baseline) is None and not options.update:
        raise ConfigError(f"there is no baseline {baseline}", "--update-baseline writes it")
    documents = documents_of(format_name, outputs, [subject.name for subject in subjects])
    judged = judge_all(subjects, options)
    if options.update:
        _write(judged)
    emit_gate([[one.report for one in judged if one.subject is subject] for subject in subjects], documents)
    _stop(judged)


def subjects_of(
    configs: Sequence[Path],
    traces: Sequence[Path],
    targets: Targets,
    script: Script | None,
    steps: int | None,
) -> list[Subject]:
    """What there is to judge, each once. Raises ConfigError for nothing, or what goes not together."""
    if len(configs) == 1 and configs[0].is_dir() and not traces and targets.model:
        return [Subject(configs[0], None, targets=targets)]
    if targets.options and (configs or traces):
        raise ConfigError(
            f"{targets.options[0]} goes with no config and no trace", "--set changes a key of a config"
        )
    if script is not None:
        if configs or traces or targets.options:
            raise ConfigError(
                f"{script.option} goes with no config and no trace", "limits: --set limits.headroom_bits=2"
            )
        return [Subject(None, None, script, steps)]
    if traces:
        if len(configs) > 1:
            raise ConfigError("--trace goes with one config, for its limits, or with none")
        config = configs[0] if configs else None
        return [Subject(config, trace) for trace in dict.fromkeys(traces)]
    if targets.options:
        return [Subject(None, None, targets=targets)]
    if not configs and DEFAULT_CONFIG.is_file():
        configs = [DEFAULT_CONFIG]
    if not configs:
        raise ConfigError(
            "nothing to judge: name a config, a trace, or a model and its data",
            hint="`ampdoctor init` writes a config",
        )
    return [Subject(config, None) for config in dict.fromkeys(configs)]


def _write(judged: Sequence[Judged]) -> None:
    """Nothing; each baseline holds what was measured for it."""
    files: dict[Path, dict[str, Known]] = {}
    for one in judged:
        if one.baseline is not None and one.known is not None:
            sections = files.setdefault(one.baseline, {})
            if one.section in sections:
                raise ConfigError(
                    f"--update-baseline: two traces are called {one.section}", "name one of them"
                )
            sections[one.section] = one.known
    write_baselines(files)
    for path, sections in files.items():
        findings = sum(len(known.findings) + len(known.limits) for known in sections.values())
        layers = sum(len(known.layers) for known in sections.values())
        say(f"{path}: {count_words(findings, 'finding')} accepted, {count_words(layers, 'layer')} noted")


def _stop(judged: Sequence[Judged]) -> None:
    """Nothing where all passed; else Stop with the worst exit code, its reason last on stderr."""
    ranks = list(EXIT_CODES)
    reasons = [(one.status, _reason(one)) for one in judged if EXIT_CODES[one.status] != OK]
    if not reasons:
        return
    *others, (status, reason) = sorted(reasons, key=lambda pair: ranks.index(pair[0]))
    for _, line in others:
        say(line)
    raise Stop(reason, EXIT_CODES[status])


def _reason(one: Judged) -> str:
    """``gate failed: t5.yaml: AMP101 forward overflow, blocks.1.ff.wo (t5.py:28): 6.1 % past 65,504``"""
    gate = one.report.gate
    assert gate is not None
    head = {FAILED: "gate failed", UNUSABLE: "error"}.get(gate.status, "gate not measured")
    # most reasons name the file already, with the line
    named = f"{head}: " if one.subject.name in gate.reason else f"{head}: {one.subject.name}: "
    if not gate.checks:
        return f"{named}{gate.reason}"
    check = gate.checks[0]
    more = f"; and {count_words(len(gate.checks) - 1, 'more check')}" if len(gate.checks) > 1 else ""
    if gate.status != FAILED:
        return f"{named}{check.message}{more}"
    at = source_place(check.source)
    where = f"{check.subject or place('')}{f' ({at})' if at else ''}"
    return f"{named}{check.code} {check.title}, {where}: {check.by or check.message.rstrip('.')}{more}"

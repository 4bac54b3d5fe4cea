"""``judge_scaler(run) -> ScalerReport``: whether a loss scale found its level, and what others would do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from ampdoctor.diagnose.headline import Headline
from ampdoctor.diagnose.rules import half_parameters_with_scaler
from ampdoctor.diagnose.scaler_report import ScalerReport, SkipGroup
from ampdoctor.diagnose.scaler_words import notes_of, remedy_of, sentence_of
from ampdoctor.facts.scaler_policies import POLICIES, ScalerPolicy, replay
from ampdoctor.facts.trace import Birth
from ampdoctor.facts.training import ScalerRun, StepRecord


def judge_scaler(
    run: ScalerRun,
    policies: Sequence[ScalerPolicy] = tuple(POLICIES.values()),
    growth_interval: int | None = None,
    command: str = "ampdoctor scan CONFIG",
) -> ScalerReport:
    """The report on a run, and what other policies do with its thresholds.

    ``growth_interval``: in place of each dynamic policy's own, where the run had another than torch's.
    ``command``: the one that scans what was trained.
    """
    taken = [s for s in run.steps if not s.skipped]
    skipped = [s for s in run.steps if s.skipped]
    at_start = sum(1 for s in skipped if not taken or s.step < taken[0].step)
    ceilings = [s.ceiling for s in run.steps]
    outcome = _outcome(run, taken, skipped)
    report = ScalerReport(
        run=run,
        outcome=outcome,
        headline=Headline(""),
        level=taken[-1].scale if taken and outcome not in _WITHOUT_LEVEL else None,
        at_start=at_start,
        later=len(skipped) - at_start,
        hopeless=ceilings.count(None),
        ceiling=min((c for c in ceilings if c is not None), default=None),
        skips=tuple(_groups(run)),
        replays=tuple(replay(_at_interval(p, growth_interval), ceilings) for p in policies)
        if ceilings
        else (),
        findings=tuple(half_parameters_with_scaler.refused(run)),
        remedy="",
        notes=(),
        command=command,
    )
    report = replace(report, headline=sentence_of(report), remedy=remedy_of(report))
    return replace(report, notes=tuple(notes_of(report)))


_WITHOUT_LEVEL = ("collapses", "breaks-weights", "diverges")


def _outcome(run: ScalerRun, taken: Sequence[StepRecord], skipped: Sequence[StepRecord]) -> str:
    if run.refusal:
        return "refused"
    if run.beside is not None and run.beside.diverges_at is not None and _fails(run):
        return "diverges"
    if run.broken_weights:
        return "breaks-weights"
    if not run.steps:
        return "not-measured"
    if _never_recovers(run):
        return "collapses"
    last = run.steps[-1]
    if last.skipped and last.ceiling is not None and run.final_scale > math.ldexp(1.0, last.ceiling):
        return "still-falling"
    if taken and taken[-1].scale < 1:
        return "settles-below-1"
    if skipped:
        return "settles"
    return "rising" if run.final_scale > run.settings.init_scale else "steady"


def _never_recovers(run: ScalerRun) -> bool:
    """Steps that no scale cures come again with the data, and sooner than the scale can grow back."""
    hopeless = [s.step for s in run.steps if s.ceiling is None]
    if not hopeless:
        return False
    if len(hopeless) == len(run.steps):
        return True
    gaps = [b - a - 1 for a, b in pairwise(hopeless)]
    since = len(run.steps) - 1 - hopeless[-1]
    return bool(gaps) and max(gaps) < run.settings.growth_interval and since < max(run.environment.batches, 1)


def _fails(run: ScalerRun) -> bool:
    """Steps that no scale of 1 or more makes finite, or weights that one destroyed."""
    return bool(run.broken_weights) or any(s.ceiling is None or s.ceiling < 0 for s in run.steps)


def _groups(run: ScalerRun) -> list[SkipGroup]:
    """The skipped steps by their cause, and by whether a scale would have helped."""
    found: dict[Any, list[StepRecord]] = {}
    for step in run.steps:
        if step.skipped:
            found.setdefault((_place(step.cause), step.ceiling is None), []).append(step)
    return [_group(run, members) for members in found.values()]


def _group(run: ScalerRun, members: list[StepRecord]) -> SkipGroup:
    first, last, beside = members[0], members[-1], run.beside
    return SkipGroup(
        first.step, last.step, len(members), first.scale, last.scale, first.bad_parameters, first.cause,
        batches=tuple(sorted({s.batch for s in members})),
        in_a_row=last.step - first.step + 1 == len(members),
        at_any_scale=first.ceiling is None,
        in_fp32_too=None if beside is None else any(beside.fails_at(s.step) for s in members),
    )  # fmt: skip


def _place(cause: Birth | None) -> tuple[Any, ...] | None:
    return None if cause is None else (cause.origin, cause.site, cause.name, cause.source)


def _at_interval(policy: ScalerPolicy, interval: int | None) -> ScalerPolicy:
    if interval is None or policy.growth_interval is None:
        return policy
    return replace(policy, growth_interval=interval)

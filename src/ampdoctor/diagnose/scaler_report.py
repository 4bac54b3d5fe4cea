"""What a loss scaler did, judged: the outcomes, the report as plain data, and its documented JSON form."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ampdoctor.diagnose.headline import Headline
from ampdoctor.diagnose.report import Finding
from ampdoctor.facts.plain import to_json
from ampdoctor.facts.scaler_policies import Replay
from ampdoctor.facts.trace import Birth
from ampdoctor.facts.training import PlainTraining, ScalerRun, StepRecord

SCHEMA = "ampdoctor.scaler/1"


@dataclass(frozen=True)
class SkipGroup:
    """Skipped steps that went wrong in the same place."""

    first: int
    last: int
    count: int
    first_scale: float
    last_scale: float
    bad_parameters: tuple[str, ...]
    """Of the first of them."""
    cause: Birth | None
    batches: tuple[int, ...] = ()
    """Each once, in order."""
    in_a_row: bool = True
    """No other step lies between them."""
    at_any_scale: bool = False
    """No loss scale makes them finite."""
    in_fp32_too: bool | None = None
    """The same steps in FP32 are not finite either: all of them, or some. None where FP32 was not run."""


@dataclass(frozen=True)
class ScalerReport:
    """The judgement on one run."""

    run: ScalerRun
    outcome: str
    """``refused``: GradScaler does not take these gradients; ``breaks-weights``: a step that was taken left
    weights non-finite; ``collapses``: step after step is non-finite at any scale, and lowers it;
    ``still-falling``: it has a level that the run was too short to reach; ``settles-below-1``: it found its
    level, where small gradients become zero; ``settles``; ``steady``: nothing skipped, nothing grown;
    ``rising``: nothing skipped, and it grew; ``diverges``: it fails, and from some step on FP32 is not finite
    either; ``not-measured``."""
    headline: Headline
    level: float | None
    """The scale it settled at: the last one at which a step was taken; None where there is none."""
    at_start: int
    """Steps skipped before the first that was taken."""
    later: int
    """Steps skipped after it."""
    hopeless: int
    """Steps that no loss scale makes finite."""
    ceiling: int | None
    """Exponent of the largest power of two at which every step that has one is finite."""
    skips: tuple[SkipGroup, ...]
    replays: tuple[Replay, ...]
    findings: tuple[Finding, ...]
    remedy: str
    notes: tuple[str, ...]
    command: str = "ampdoctor scan CONFIG"
    """Scans what was trained; '' for a script, whose steps are its own."""

    @property
    def sentence(self) -> str:
        """The outcome in a sentence or two."""
        return str(self.headline)

    def to_dict(self) -> dict[str, Any]:
        """The document ``ampdoctor.scaler/1``."""
        run = self.run
        environment = to_json(run.environment)
        version, torch = environment.pop("tool_version"), environment.pop("torch_version")
        return {
            "schema": SCHEMA,
            "tool": {"version": version},
            "environment": {**environment, "torch": torch, "seed": run.seed},
            "outcome": self.outcome,
            "summary": str(self.headline),
            "optimizer": run.optimizer,
            "parameter_dtypes": list(run.parameter_dtypes),
            "settings": to_json(run.settings),
            "steps_requested": run.requested,
            "steps_run": len(run.steps),
            "level": self.level,
            "final_scale": run.final_scale,
            "skipped": {"at_start": self.at_start, "later": self.later, "at_any_scale": self.hopeless},
            "highest_scale_for_all": _scale(self.ceiling),
            "steps": [_step(s) for s in run.steps],
            "skips": [_skips(group) for group in self.skips],
            "policies": [_replay(r) for r in self.replays],
            "broken_weights": list(run.broken_weights),
            "refusal": run.refusal,
            "fp32": _beside(run.beside),
            "findings": [to_json(f) for f in self.findings],
            "remedy": self.remedy,
            "notes": list(self.notes),
            "seconds": run.seconds,
            "interrupted": run.interrupted,
        }


def _beside(beside: PlainTraining | None) -> dict[str, Any] | None:
    """The same steps in FP32; None where they were not taken."""
    if beside is None:
        return None
    return {
        "diverges_at": beside.diverges_at,
        "not_finite": [i for i, step in enumerate(beside.steps) if not step.finite],
        "losses": to_json([step.loss for step in beside.steps]),
        "failure": beside.failure,
    }


def _scale(exponent: int | None) -> float | None:
    return None if exponent is None else math.ldexp(1.0, exponent)


def _step(step: StepRecord) -> dict[str, Any]:
    return {
        "step": step.step,
        "batch": step.batch,
        "loss": to_json(step.loss),
        "scale": step.scale,
        "skipped": step.skipped,
        "highest_finite_scale": _scale(step.ceiling),
        "bad_parameters": list(step.bad_parameters),
    }


def _skips(group: SkipGroup) -> dict[str, Any]:
    cause, site = group.cause, group.cause.site if group.cause else None
    return {
        "first": group.first,
        "last": group.last,
        "count": group.count,
        "scales": [group.first_scale, group.last_scale],
        "bad_parameters": list(group.bad_parameters),
        "batches": list(group.batches),
        "at_any_scale": group.at_any_scale,
        "in_fp32_too": group.in_fp32_too,
        "cause": None
        if cause is None
        else {
            "origin": cause.origin,
            "tensor": cause.name,
            "value": cause.value,
            "phase": site.phase if site else None,
            "module": site.module if site else None,
            "op": site.op if site else None,
            "forward_op": cause.forward_op,
            "source": to_json(cause.source),
            "exact_value": to_json(cause.exact_value),
            "loss_scale": cause.loss_scale,
        },
    }


def _replay(found: Replay) -> dict[str, Any]:
    return {
        "policy": found.policy.name,
        "init_scale": found.policy.init_scale,
        "growth_interval": found.policy.growth_interval,
        "skipped": len(found.skipped),
        "final_scale": found.final_scale,
        "stopped_at_step": len(found.scales) - 1 if found.stopped else None,
    }

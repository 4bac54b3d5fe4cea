"""What ``prescribe`` found: treatments that were run and hold, what failed, or why nothing helps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ampdoctor.diagnose.report import Finding
from ampdoctor.facts.environment import Environment
from ampdoctor.facts.plain import to_json
from ampdoctor.facts.words import TreatmentKind, Verdict
from ampdoctor.remedy.plan import TreatmentPlan

SCHEMA = "ampdoctor.prescription/1"


@dataclass(frozen=True)
class Proof:
    """A whole scan with the treatment, on every batch: its verdict was ``clean``. Of formats, a run of every
    batch within the limits that a diagnosis calls harm."""

    batches: int
    """All of them ended with a finite loss and finite gradients."""
    loss_scale: float
    """At which it was run."""
    loss_error: float | None
    """Of the worst batch, relative to FP32; None where there is no loss."""
    gradient_error: float | None
    """Of the worst parameter in the 2-norm, relative to FP32, noise left out; None without gradients."""
    window: tuple[float, float] | None
    """Loss scales that work with the treatment; None where none were searched."""


@dataclass(frozen=True)
class Cost:
    """What goes to FP32."""

    flops: float | None
    """Share of the floating-point operations of forward; None where none were counted."""
    time: float | None
    """Share of a step's time; None: not measured, a CPU's times say nothing of a GPU's."""


@dataclass(frozen=True)
class Treatment:
    """One change that cures, proven."""

    kind: TreatmentKind
    plan: TreatmentPlan
    proof: Proof
    cost: Cost
    minimal: bool | None
    """Leaving out any one of its modules was run and fails; None where there is nothing to leave out."""


@dataclass(frozen=True)
class Attempt:
    """What was run and does not cure."""

    kind: TreatmentKind
    what: str
    why: str


@dataclass(frozen=True)
class Prescription:
    """The treatments for one diagnosis, best first."""

    environment: Environment
    verdict: Verdict
    """Of the scan without treatment."""
    diagnosis: str
    """Its sentence."""
    treatments: tuple[Treatment, ...]
    tried: tuple[Attempt, ...]
    incurable: str
    """Why nothing in reach cures it; '' where something does, and where nothing is wrong."""
    runs: int
    """Passes of the search, without the scans that diagnose and prove."""
    not_run: tuple[str, ...] = ()
    """What the rules advise at a line, which no program here can apply: ``model.py:47: ...``."""
    findings: tuple[Finding, ...] = ()
    """Of the scan without treatment. The remedy of one that is gone in the scan under a treatment is the best
    such treatment; else what its rule advises."""

    def to_dict(self) -> dict[str, Any]:
        """The document ``ampdoctor.prescription/1``."""
        return {"schema": SCHEMA, **to_json(self)}

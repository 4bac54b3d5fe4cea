"""What is already known of a config: findings by a key that outlives edits elsewhere, each layer's figures.

A finding's key is its rule, module, op and the text of its source line: no line number and no count of calls,
so that moved lines, and calls put in before it, leave it the one it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ampdoctor.diagnose.gate_result import Check
from ampdoctor.diagnose.gathering import apart
from ampdoctor.diagnose.report import Finding, LayerRow, Report
from ampdoctor.facts.environment import Environment
from ampdoctor.facts.words import SEVERITIES, Mode, Scaler, Severity
from ampdoctor.gate.rules import GateRules

Key = tuple[str, str, str, str]
"""Rule code, module, op, source line."""


@dataclass(frozen=True)
class KnownFinding:
    """A finding that is accepted as long as it does not grow."""

    code: str
    module: str
    op: str
    line: str
    """The text of the source line; where it is not known, the function's or the tensor's name."""
    severity: Severity
    places: int = 1
    """Findings with this key."""
    overflow_bits: float | None = None
    headroom_bits: float | None = None
    share: float | None = None
    lost: float | None = None
    drift: float | None = None
    scale_bits: float | None = None

    @property
    def key(self) -> Key:
        """What it is told from others by."""
        return self.code, self.module, self.op, self.line


@dataclass(frozen=True)
class KnownLimit:
    """A limit that is already broken, or could not be checked."""

    limit: str
    subject: str
    """The module, or the parameter; '' for the whole scan."""
    measured: float | None = None
    """None: could not be checked."""


@dataclass(frozen=True)
class KnownLayer:
    """What a module had when the baseline was written."""

    headroom_bits: float | None = None
    underflow: float | None = None


@dataclass(frozen=True)
class KnownRun:
    """What the figures were measured on: where this differs, so may they."""

    device: str
    """``cpu`` | ``cuda``"""
    emulates: str | None
    mode: Mode
    dtype: str
    loss_scale: float
    torch: str
    scaler: Scaler = "fixed"


@dataclass(frozen=True)
class Known:
    """The section of one config."""

    run: KnownRun
    findings: tuple[KnownFinding, ...] = ()
    limits: tuple[KnownLimit, ...] = ()
    layers: Mapping[str, KnownLayer] = field(default_factory=dict)


def key_of(finding: Finding) -> Key:
    """What tells the finding from others, whatever happens to other lines and calls."""
    source = finding.source
    line = "" if source is None else " ".join(source.text.split()) or source.function
    line = line or finding.tensor  # a weight or a batch: it has a name and no line
    return finding.code, finding.module, finding.op, line


def known_of(report: Report, rules: GateRules, broken: Sequence[Check]) -> Known:
    """The section that accepts all that this report shows. ``broken``: failed and unchecked limits."""
    groups: dict[Key, list[Finding]] = {}
    for finding in apart(report.findings):
        if finding.accepted is None and (finding.severity != "info" or rules.fails_on(finding)):
            groups.setdefault(key_of(finding), []).append(finding)
    limits = {
        (c.name, c.subject): KnownLimit(c.name, c.subject, _rounded(c.name, c.measured)) for c in broken
    }
    return Known(
        run_of(report.environment),
        tuple(known_finding(groups[key]) for key in sorted(groups)),
        tuple(limits[key] for key in sorted(limits)),
        {row.module: layer for row in sorted(report.layers, key=_module) if (layer := known_layer(row))},
    )


def known_finding(group: Sequence[Finding]) -> KnownFinding:
    """Findings with one key as one entry: the worst of each figure."""
    worst: dict[str, float] = {}
    for finding in group:
        for name, value in vars(finding.amounts).items():
            if isinstance(value, float):
                better = min if name == "headroom_bits" else max
                worst[name] = better(worst.get(name, value), value)
    figures: dict[str, Any] = {name: _rounded(name, value) for name, value in worst.items()}
    severity = min((f.severity for f in group), key=SEVERITIES.index)
    return KnownFinding(*key_of(group[0]), severity, len(group), **figures)


def known_layer(row: LayerRow) -> KnownLayer | None:
    """The layer's figures, rounded; None where it has none: it overflows, or runs in FP32."""
    forward, gradient = row.forward, row.gradient
    finite = forward is not None and not row.born and not forward.inf
    bits = forward.headroom_bits if forward is not None and finite else None
    share = gradient.underflow_fraction if gradient is not None else None
    if bits is None and share is None:
        return None
    return KnownLayer(_rounded("headroom_bits", bits), _rounded("underflow", share))


def run_of(environment: Environment) -> KnownRun:
    """What this run was measured on."""
    return KnownRun(
        device=environment.device.partition(":")[0],
        emulates=environment.emulates,
        mode=environment.mode,
        dtype=environment.dtype,
        loss_scale=environment.loss_scale,
        torch=environment.torch_version.partition("+")[0],
        scaler=environment.scaler,
    )


def _module(row: LayerRow) -> str:
    return row.module


def _rounded(name: str, value: float | None) -> float | None:
    """Bits to a tenth, shares of a gradient to a tenth of a percent, those of a tensor to three digits."""
    if value is None:
        return None
    if name.endswith("_bits") or name == "scale_in_window":
        return round(value, 1)
    return float(f"{value:.3g}") if name == "share" else round(value, 3)

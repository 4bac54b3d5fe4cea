"""The diagnosis as plain data: everything a renderer needs, and the documented JSON form of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ampdoctor.diagnose.amounts import NOTHING, Amounts
from ampdoctor.diagnose.gate_result import Accepted, GateResult, WaiverState
from ampdoctor.diagnose.headline import Headline
from ampdoctor.diagnose.wording import step_words
from ampdoctor.facts.environment import Environment
from ampdoctor.facts.histogram import ExponentHistogram
from ampdoctor.facts.plain import to_json
from ampdoctor.facts.site import Source
from ampdoctor.facts.trace import OperandFact, Step, ZeroOrigin
from ampdoctor.facts.words import Cause, NotFixed, NotSearched, Phase, Severity, Value, Verdict

SCHEMA = "ampdoctor.report/1"


@dataclass(frozen=True)
class FindingPlace:
    """One of several places of a finding, with what is said of it alone."""

    module: str
    op: str
    source: Source | None
    message: str
    evidence: Mapping[str, Any]
    count: int
    amounts: Amounts


@dataclass(frozen=True)
class Finding:
    """One diagnosis: rule code, severity, site, evidence in numbers, remedy."""

    code: str
    severity: Severity
    title: str
    module: str
    op: str
    source: Source | None
    message: str
    evidence: Mapping[str, Any]
    """Numbers and names that the message rests on."""
    remedy: str
    count: int = 1
    """How many births or tensors at this place the finding stands for."""
    accepted: Accepted | None = None
    """Why it does not count, where a waiver or the gate's baseline accepts it."""
    amounts: Amounts = NOTHING
    """What it weighs."""
    whole_scan: bool = False
    """It speaks once for the whole scan, whatever module it names; else for its place."""
    tensor: str = ""
    """The weight, buffer or batch tensor it is about, where no line is; else ''."""
    places: tuple[FindingPlace, ...] = ()
    """Where it speaks of several, all of them, its own first: they run the same line, or hand on the same
    stream of values."""


@dataclass(frozen=True, kw_only=True)
class FirstFault:
    """Where the first bad value that matters is born, and why."""

    phase: Phase
    value: Value | None
    """None where the op raised instead."""
    cause: Cause | None
    """None for a bad input and for an exception."""
    module: str
    module_type: str
    """The module's class; '' where the module is not known."""
    op: str
    source: Source | None
    dtype: str
    shape: tuple[int, ...]
    index: tuple[int, ...] | None
    count: int | None
    """Elements born bad, of ``numel``."""
    batch: int
    samples: tuple[int, ...] | None = None
    exact_value: float | None = None
    """What the element should have been."""
    reference_value: float | None = None
    """What it was in the FP32 pass."""
    fp32_also_fails: bool = False
    """FP32 has it at the same place; or, of a value out of an op's domain, ends non-finite as well."""
    loss_scale: float
    inputs: tuple[OperandFact, ...] = ()
    implicit_cast: bool = False
    constant: float | None = None
    forward_op: str = ""
    root: ZeroOrigin | None = None
    """Where the zero was made that this op stumbled over."""
    path: tuple[Step, ...] = ()
    reaches_loss: bool = False
    reaches_gradients: tuple[str, ...] = ()
    absorbed_at: Step | None = None
    tensor: str = ""
    """The weight, buffer or batch tensor that was bad from the start; '' for a value an op made."""
    backward_source: Source | None = None
    """For a fault in a backward that the user wrote: the line there; ``source`` is the forward line."""
    spoils_buffers: tuple[str, ...] = ()
    """Buffers that it leaves non-finite: the next step starts from them."""

    @property
    def sample(self) -> int | None:
        """The sample of the element that stands for the fault."""
        if not self.samples:
            return None
        return self.index[0] if self.index and self.index[0] in self.samples else self.samples[0]

    @property
    def numel(self) -> int:
        """Elements of the tensor it was born in."""
        n = 1
        for size in self.shape:
            n *= size
        return n


@dataclass(frozen=True)
class RunUpRow:
    """One module on the way to the first fault."""

    module: str
    op: str
    absmax: float | None
    headroom_bits: float | None
    growth: float | None
    """Against the row before; None for the first."""
    here: bool
    """This is the first fault."""


@dataclass(frozen=True)
class ForwardRange:
    """What a module's own ops made in forward."""

    min: float | None
    max: float | None
    absmax: float | None
    """Largest finite magnitude."""
    headroom_bits: float | None
    """log2(largest value of the tensor's own format / absmax); None where it made no low-precision tensor."""
    nan: int
    inf: int


@dataclass(frozen=True)
class GradientRange:
    """What the backward of a module's own ops made. Magnitudes are unscaled: divided by the loss scale."""

    absmax: float | None
    underflow_fraction: float | None
    """Elements zeroed by rounding, in these ops or before them, of those nonzero in the reference; None where
    not measured."""
    subnormal_fraction: float | None
    nan: int
    inf: int


@dataclass(frozen=True)
class LayerRow:
    """One module."""

    module: str
    type: str
    calls: int
    forward: ForwardRange | None
    """None for a module whose own ops made no floating-point tensor."""
    gradient: GradientRange | None
    position: int
    """Place in the model's own order."""
    born: str
    """``inf`` or ``nan`` where a fault is born in this module's forward, else ''."""


@dataclass(frozen=True)
class OpRow:
    """An op of one module that makes floating-point tensors of one dtype, in the first batch's pass."""

    module: str
    phase: Phase
    op: str
    dtype: str
    """Of what it makes."""
    calls: int
    elements: int
    """That all calls make."""
    by_autocast: bool
    """A cast that autocast puts in, or its derivative: the user's line converts nothing."""
    bytes_moved: int
    """What such casts read and write; 0 for every other op, of which it is not known."""


@dataclass(frozen=True)
class ParameterRow:
    """One parameter's gradient against the reference's."""

    name: str
    absmax: float | None
    """Unscaled."""
    underflow_fraction: float | None
    """Elements rounded to zero in the op that made this gradient, of those nonzero in the reference."""
    lost_fraction: float | None
    """Elements that are zero here, of those nonzero in the reference."""
    relative_error: float | None
    noise: bool = False
    """The reference's own gradient is rounding noise, or vanishes: the other figures mean nothing."""


@dataclass(frozen=True)
class LossScale:
    """The configured loss scale and what is known about others. None: not measured."""

    configured: float
    """Of a dynamic scaler, the scale it starts at; 1 without a scaler."""
    recommended: float | None = None
    """The top of the window, at most 2^24."""
    window: tuple[float, float] | None = None
    """[lowest, highest] power of two that works; None with ``searched``: none does."""
    limited_by: Mapping[str, Any] | None = None
    """What limits the top: module, op, forward_op, source; ``low``: the same of the bottom."""
    verified: bool = False
    """The recommended scale was run and is finite, the first past the ceiling was run and overflows."""
    underflow_fraction: Mapping[str, float | None] = field(default_factory=dict)
    """{power of two: share of low-precision gradient elements that become zero}; None where it overflows."""
    searched: bool = False
    """Loss scales were looked for."""
    ceiling: float | None = None
    """The highest power of two at which nothing overflows, without a margin."""
    lost_fraction: Mapping[str, float | None] = field(default_factory=dict)
    """{scale that was run: share of all parameter-gradient elements lost}; None where it was not finite."""
    alternatives: tuple[Mapping[str, Any], ...] = ()
    """Where no scale works: what would help, the window it is predicted to give, and its ``run``: {works,
    loss_scale, factor}; None where it was not run."""
    scaler: NotFixed | None = None
    """None: a fixed scale."""
    skips: int | None = None
    """Steps that a dynamic scaler skips until it settles; None where it does not, and for other scalers."""
    settles_at: float | None = None
    """The scale at which it does: the one that is judged."""
    ends_run: tuple[bool, bool] | None = None
    """[lowest, highest] of the window was run on every batch; what was not is read from the histograms. None
    without a window."""
    not_searched: NotSearched | None = None
    """Why no other scales were tried; None where they were."""

    @property
    def judged(self) -> float:
        """The scale that the report speaks of."""
        return self.configured if self.settles_at is None else self.settles_at

    @property
    def lost_as_judged(self) -> float | None:
        """Share of all parameter-gradient elements lost there; None where that is not finite or unknown."""
        return self.lost_fraction.get(f"{self.judged:.0f}" if self.judged >= 1 else f"{self.judged:g}")


@dataclass(frozen=True)
class GradientBins:
    """Low-precision gradients by their exponents, as they are at loss scale 1 and before they are rounded."""

    module: str
    histogram: ExponentHistogram
    """Its zeros are zero before this rounding already."""
    nonzero: int
    """Elements that are nonzero in the reference: what there is to lose."""
    absmax: float
    """Largest magnitude; times the loss scale, it decides whether anything overflows."""
    underflow_fraction: tuple[float, ...]
    """Share of ``nonzero`` that is zero after rounding at loss scale 2^0, 2^1, ... up to 2^32; past the end
    of a shorter tuple it is 0."""


@dataclass(frozen=True)
class GradientHistogram:
    """Where the gradients lie. Shifted by k bits, it is the histogram at loss scale 2^k."""

    dtype: str
    """The format that they are rounded to, or most of them."""
    total: GradientBins
    layers: tuple[GradientBins, ...]
    """By the module whose backward makes them, in the model's own order."""


@dataclass(frozen=True)
class LossRow:
    """One batch's unscaled loss in both precisions. None: there is none."""

    batch: int
    reference: float | None
    candidate: float | None


@dataclass(frozen=True)
class Report:
    """The whole diagnosis of one trace."""

    environment: Environment
    verdict: Verdict
    headline: Headline
    """The verdict in one sentence."""
    first_fault: FirstFault | None
    run_up: tuple[RunUpRow, ...]
    losses: tuple[LossRow, ...]
    """One per batch."""
    layers: tuple[LayerRow, ...]
    """Worst first."""
    parameters: tuple[ParameterRow, ...]
    loss_scale: LossScale
    findings: tuple[Finding, ...]
    """Errors first, each severity in the order the faults happened."""
    not_seen: tuple[str, ...]
    """What could not be measured, a phrase each."""
    passes: int
    seconds: float
    interrupted: bool
    seed: int
    gradient_histogram: GradientHistogram | None = None
    """None where no pass has a finite backward with low-precision gradients."""
    rules: tuple[str, ...] = ()
    """Codes of the rules that were applied."""
    config: str = ""
    """The config file that was scanned, as a path from the current folder; '' where there was none. Not in
    the document, which is the same for a trace that was kept."""
    waivers: tuple[WaiverState, ...] = ()
    """Those of the config, with what they still do."""
    ops: tuple[OpRow, ...] = ()
    """In the order in which they ran."""
    gate: GateResult | None = None
    """The gate's word on it; None for a report that no gate has judged."""

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        return str(self.headline)

    def to_dict(self) -> dict[str, Any]:
        """The document ``ampdoctor.report/1``: None where a figure does not exist, NaN and inf as words."""
        environment = to_json(self.environment)
        version, torch = environment.pop("tool_version"), environment.pop("torch_version")
        return {
            "schema": SCHEMA,
            "tool": {"version": version},
            "environment": {**environment, "torch": torch, "seed": self.seed},
            "verdict": self.verdict,
            "summary": self.sentence,
            "first_fault": _first_fault(self.first_fault),
            "run_up": to_json(self.run_up),
            "losses": to_json(self.losses),
            "layers": to_json(self.layers),
            "ops": to_json(self.ops),
            "parameters": [_parameter(row) for row in self.parameters],
            "loss_scale": to_json(self.loss_scale),
            "gradient_histogram": to_json(self.gradient_histogram),
            "findings": to_json(self.findings),
            "not_seen": list(self.not_seen),
            "passes": self.passes,
            "seconds": self.seconds,
            "interrupted": self.interrupted,
            "rules": list(self.rules),
            "waivers": to_json(self.waivers),
            "gate": to_json(self.gate),
        }


def _first_fault(fault: FirstFault | None) -> dict[str, Any] | None:
    if fault is None:
        return None
    document: dict[str, Any] = to_json(fault)
    document["sample"] = fault.sample
    document["numel"] = fault.numel
    document["path"] = [step_words(step) for step in fault.path]
    return document


def _parameter(row: ParameterRow) -> dict[str, Any]:
    gradient = to_json(row)
    return {"name": gradient.pop("name"), "noise": gradient.pop("noise"), "gradient": gradient}

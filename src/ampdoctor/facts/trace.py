"""The trace: everything a probe saw, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from ampdoctor.facts.alternatives import AlternativeRun
from ampdoctor.facts.drift import Drift
from ampdoctor.facts.environment import Environment, Settling
from ampdoctor.facts.site import Site, Source
from ampdoctor.facts.stats import TensorStats
from ampdoctor.facts.updates import ParameterUpdate, StepLoss
from ampdoctor.facts.words import InReference, Mode, Origin, Outcome, Phase, Rerun, Role, TensorKind, Value


@dataclass(frozen=True)
class ModuleRecord:
    """One module of the model."""

    path: str
    type: str
    """Class name."""
    calls: int
    """Forward calls in the candidate pass of the first batch (0: never ran)."""
    parameters: int
    """Elements of its own parameters, without its children's."""
    opaque: bool
    """Ran, but no op of it was seen: a kernel or script nobody can see into. Measured at its outputs only."""
    compiled: bool
    """Was compiled with torch.compile; ran eagerly here."""
    only_trained: bool = False
    """Ran as in training, and computes something else in evaluation: batch statistics, dropout."""


@dataclass(frozen=True)
class Raised:
    """An exception out of the model's or the loss's code during a pass."""

    type: str
    message: str
    phase: Phase
    module: str
    op: str
    """The op that raised; '' where the exception came from plain Python code."""
    source: Source | None
    emulated_refusal: bool
    """True where CUDA's autocast refuses this op and the emulation refused it in CUDA's place."""
    constant: float | None = None
    """The op's scalar argument that the dtype cannot hold (``masked_fill(-1e9)``), where there is one."""
    traceback: str = ""
    passed_as: str = ""
    """How the batch was handed to the model, where no loss of the user's did that."""
    """The user's own part of the traceback."""


@dataclass(frozen=True)
class SiteRecord:
    """One tensor made in a pass."""

    site: Site
    order: int
    """Position among the pass's ops, from 0."""
    stats: TensorStats
    source: Source | None
    """The user's line; for a backward op the forward line it differentiates."""
    forward_op: str = ""
    """For a backward op: the forward op it differentiates."""
    parameter: str = ""
    """For a gradient that arrives at a parameter: its name."""
    implicit_cast: bool = False
    """A ``_to_copy`` that autocast put in; the user's line converts nothing."""
    recomputed: bool = False
    """A forward op run again inside backward (activation checkpointing)."""


@dataclass(frozen=True)
class ParameterGradient:
    """One parameter's gradient, unscaled, against the reference's. None: the figure does not exist."""

    name: str
    numel: int
    dtype: str
    absmax: float | None
    """Largest finite magnitude after dividing by the loss scale."""
    nan: int
    inf: int
    zeros: int
    reference_absmax: float | None
    reference_nonzero: int | None
    """Elements nonzero in the reference."""
    lost: int | None
    """Elements nonzero in the reference and exactly zero here."""
    relative_error: float | None
    """|g - g_ref| / |g_ref| in the 2-norm; None without a finite reference, or if that is all zero."""
    cosine: float | None
    reference_norm: float | None = None
    """2-norm of the reference gradient."""
    reference_error: float | None = None
    """Relative error of the reference gradient itself, against float64; None where that was not asked."""


@dataclass(frozen=True)
class BufferState:
    """What a pass left in a buffer that it or the reference wrote to, next to what the reference left."""

    name: str
    numel: int
    dtype: str
    nonfinite: int
    """Elements that are NaN or inf."""
    nonfinite_here_only: int
    """Of those, elements that the reference leaves finite."""
    relative_error: float | None
    """|b - b_ref| / |b_ref| in the 2-norm, of a running mean over the running standard deviation where that
    is larger; None where one is not finite, or the reference is all zero."""
    reference_error: float | None = None
    """The same of what the reference left, against float64; None where that was not asked."""


@dataclass(frozen=True)
class Pass:
    """One instrumented forward (and backward) of one batch in one precision."""

    role: Role
    batch: int
    mode: Mode
    dtype: str
    loss_scale: float
    loss: float | None
    """The unscaled loss; None if the pass raised before, or is forward-only."""
    loss_dtype: str
    raised: Raised | None
    sites: tuple[SiteRecord, ...]
    parameters: tuple[ParameterGradient, ...]
    seconds: float
    backward_ran: bool
    """False for a forward-only pass, after an exception, and where the loss depends on no parameter."""
    interrupted: bool = False
    buffers: tuple[BufferState, ...] = ()
    """Those that the pass or its reference wrote to."""
    output_error: float | None = None
    """Of a forward-only pass: |y - y_ref| / |y_ref| of the output tensors taken together; None elsewhere."""
    raised_as_written: Raised | None = None
    """What this FP32 pass raised as long as the model's own casts to 16 bits were not widened to FP32."""


@dataclass(frozen=True)
class Step:
    """One op that a non-finite value passed through."""

    phase: Phase
    module: str
    op: str
    source: Source | None
    value: Outcome
    """What its output holds; ``finite``: the value was absorbed here."""
    order: int


@dataclass(frozen=True)
class OperandFact:
    """One tensor that went into the op of a birth."""

    dtype: str
    shape: tuple[int, ...]
    absmax: float | None
    zeros: int
    infs: int
    nans: int
    made_by: Step | None
    """The op that made it, where it was seen."""


@dataclass(frozen=True)
class ZeroOrigin:
    """Where nonzero values became the zero that the op of a birth divided by or took the log of."""

    site: Site
    source: Source | None
    zeros: int
    """Elements that are zero here and nonzero at the same site of the reference."""
    reference_absmax: float | None
    """Largest magnitude at this site of the reference; None where the reference has no such site (a cast)."""
    made_by: Step | None
    """For a cast: the op that made the values it rounded to zero."""
    constant: float | None = None
    """The smallest nonzero number among the op's arguments: an eps, where it adds one."""


@dataclass(frozen=True)
class Birth:
    """One non-finite value's beginning, from the second look at a pass that had some."""

    id: int
    origin: Origin
    batch: int
    loss_scale: float
    value: Value
    dtype: str
    order: int
    site: Site | None
    """None for an origin other than ``op``."""
    source: Source | None
    backward_source: Source | None
    """For a birth inside a backward that the user wrote: the line there."""
    forward_op: str
    implicit_cast: bool
    name: str
    """For ``batch``, ``parameter``, ``buffer``: which tensor. For an op that casts a weight or buffer to the
    low precision before the pass: ``parameter fc.weight``. Otherwise ''."""
    shape: tuple[int, ...]
    """As the user sees it: where a view follows at once (nn.Linear flattens its input), the view's shape."""
    index: tuple[int, ...]
    """Of the elements born bad that are not bad at this site of the reference, else of all born bad: the one
    that is furthest past the format's end, or the first where that one has no finite value in float64."""
    count: int
    """Elements born bad in this op."""
    samples: tuple[int, ...] | None
    """Samples that hold them, where the first dimension is the batch; else None."""
    exact_value: float | None
    """That element from the same op on the same inputs in float64; None where it could not be run."""
    rerun: Rerun
    """The float64 rerun at that element."""
    reference: InReference
    """The same site of the FP32 pass."""
    reference_value: float | None
    """That element in the FP32 pass."""
    operands: tuple[OperandFact, ...]
    constant: float | None
    """The op's scalar argument of the largest magnitude, where it has one."""
    zero_origin: ZeroOrigin | None
    parents: tuple[int, ...]
    """Births whose infinities this NaN came from (a declared infinity, mostly)."""
    reaches_loss: bool
    reaches_gradients: tuple[str, ...]
    """Names of the parameters whose gradient it made non-finite."""
    path: tuple[Step, ...]
    """The ops it went through, in order; shortened to the first and last few."""
    absorbed_at: Step | None
    """The last op that took it in and gave only finite values, where it reached neither loss nor gradient."""
    reference_dtype: str = ""
    """Of the tensor at the same site of the FP32 pass; '' where that has no such site."""
    shared: int = 0
    """Of the elements born bad, those that are bad at the same site of the FP32 pass too."""
    shared_index: tuple[int, ...] = ()
    """The first of those."""
    reaches_buffers: tuple[str, ...] = ()
    """Buffers that hold it after the pass: the next step starts from them."""
    argument: float | None = None
    """What an op of one argument (a root, a logarithm, exp) was given at ``index``; None for other ops."""
    zero_chain: tuple[ZeroOrigin, ...] = ()
    """The ops that make zeros on the way here from ``zero_origin``, which is the last: nearest first."""

    @property
    def line(self) -> Source | None:
        """The line to look at: in the backward the user wrote, where they wrote one, else ``source``."""
        return self.backward_source or self.source


@dataclass(frozen=True)
class BadTensor:
    """A weight, buffer or batch tensor that is non-finite before anything ran."""

    kind: TensorKind
    name: str
    """Dotted name; for a batch tensor its path in the batch: ``["ctx"]``, ``[0]``."""
    batch: int | None
    dtype: str
    shape: tuple[int, ...]
    nan: int
    inf: int
    index: tuple[int, ...]
    """The first bad element."""
    samples: tuple[int, ...] | None


@dataclass(frozen=True)
class ScaleRun:
    """The candidate, run at one loss scale to see what happens there."""

    batch: int
    loss_scale: float
    finite: bool
    """Every tensor of backward and every gradient."""
    overflow: SiteRecord | None
    """The first backward tensor that is not finite."""
    zeroed: int
    """Elements of the low-precision tensors that rounding or an earlier zero made zero..."""
    nonzero: int
    """...of those nonzero in the reference (before rounding, where it has no such site)."""
    parameters: tuple[ParameterGradient, ...]
    """Against the reference; () where not finite."""


@dataclass(frozen=True)
class OptimizerStep:
    """The optimizer's steps from the unscaled gradients of the batches in turn, on low-precision weights or
    by an optimizer that casts inside; next to the same steps of FP32 weights from the same gradients."""

    optimizer: str
    """Class name."""
    source: Source | None
    """The user's line that makes the optimizer."""
    loss_scale: float
    updates: tuple[ParameterUpdate, ...]
    """One per parameter that has a gradient and that the optimizer holds."""
    birth: Birth | None
    """The first non-finite value of the step that destroyed weights; None where there is none."""
    failure: str = ""
    """Why no step could be taken, such as an exception of the optimizer's; ``updates`` is () then."""
    casts_to: str = ""
    """The dtype that the optimizer itself casts to, losing values to zero, though the weights are FP32;
    ``source`` is the line of that cast then, and the reference of ``updates`` the step without it. "" where
    the weights round."""
    by_step: tuple[StepLoss, ...] = ()
    """Of each step taken, all parameters together; () in traces of versions that took one."""
    window: int = 1
    """The steps that ``updates`` counts together: the last ones taken."""
    stopped: str = ""
    """Why there are fewer steps than were asked for; "" where there are not."""
    draws: bool = False
    """The optimizer draws random numbers, as one that rounds stochastically does."""
    fp32_diverges_at: int | None = None
    """Of weights that a step destroyed: the step at which FP32 training is not finite either; None where it
    stays finite, and where it was not asked."""


@dataclass(frozen=True)
class Trace:
    """Everything seen in one scan."""

    environment: Environment
    modules: tuple[ModuleRecord, ...]
    bad_tensors: tuple[BadTensor, ...]
    passes: tuple[Pass, ...]
    births: tuple[Birth, ...]
    opaque_ops: tuple[str, ...]
    """Ops from outside ATen whose inside was not seen."""
    refused_ops: tuple[str, ...]
    """Ops that the emulation had to leave to the CPU's own kernel."""
    deterministic: bool | None
    """The candidate's loss repeated to the last bit; None where not tried."""
    observer_changed_loss: bool | None
    """The candidate's loss differs with and without instrumentation; None where not tried."""
    seed: int
    """The seed every pass began with."""
    seconds: float
    interrupted: bool = False
    scale_runs: tuple[ScaleRun, ...] = ()
    """Runs of the scale search, in the order made; () where backward could not be judged."""
    drifts: tuple[Drift, ...] = ()
    """Of each batch whose outcome is finite and far off: the op where that begins, if one stands out."""
    alternatives: tuple[AlternativeRun, ...] = ()
    """What was run where no loss scale works; () elsewhere."""
    optimizer_step: OptimizerStep | None = None
    """None where no optimizer is configured, and where nothing in its steps can round."""
    settling: Settling | None = None
    """None for a scale that nothing changes, and where no scale from the start down to 1 is finite."""

    @property
    def loss_scale(self) -> float:
        """The scale that is judged: the configured one; of a dynamic scaler the one at which it settles."""
        return self.settling.loss_scale if self.settling else self.environment.loss_scale

"""The words that traces and reports are told in: each a type, so that a misspelled one is found.

The JSON Schemas list them, in this order.
"""

from __future__ import annotations

from typing import Literal, get_args

# ---------------------------------------------------------------- what was seen

Mode = Literal["autocast", "half", "none"]
"""How the candidate runs: under autocast; with weights and batch cast; as the user built it."""

AUTOCASTS: frozenset[Mode] = frozenset(("autocast",))
"""Modes in which forward runs under autocast."""
CASTS_WEIGHTS: frozenset[Mode] = frozenset(("half",))
"""Modes in which weights, buffers and batch are cast before anything runs."""
AS_BUILT: frozenset[Mode] = frozenset(("none",))
"""Modes that change nothing of the model: what it casts or autocasts itself is all there is."""

AUTOCAST_DEVICES = ("cpu", "cuda")
"""The kinds of devices whose autocast is followed where the user's code opens it."""

NotSearched = Literal[
    "interrupted",
    "raised",
    "no-gradients",
    "fault-at-every-scale",
    "all-zero",
    "no-scale-needed",
    "nothing-rounds",
    "not-asked",
]
"""Why no other loss scales were tried: the scan or the model stopped; backward made no gradients; a fault of
the forward or the data spoils them at every scale; all of them are zero, in FP32 too; there is no scaler and
nothing needs one; no gradient is of low precision; a search was not asked for."""

Scaler = Literal["dynamic", "fixed", "none"]
"""What sets the loss scale: a GradScaler that halves it at each infinity; the user, once for all; nothing."""

NotFixed = Literal["dynamic", "none"]
"""The same in a report, which says nothing of a fixed one."""

Phase = Literal["forward", "backward", "optimizer"]
"""What a step is doing when an op runs."""

Role = Literal["reference", "candidate", "ladder"]
"""What a pass is for. ``ladder`` is the candidate at another scale than the one that is judged: a lower one,
to read its histograms where that overflows in backward; or the one that a scaler starts at and leaves."""

Value = Literal["inf", "nan"]
"""A non-finite value's kind."""

Outcome = Literal["inf", "nan", "finite"]
"""What an op made of a non-finite value; ``finite``: it was absorbed."""

Rerun = Literal["finite", "inf", "nan", "not-run"]
"""What an op gives at one element when it is run again in float64."""

InReference = Literal["finite", "same", "absent"]
"""What the FP32 pass holds at the elements of a birth; ``same``: it is bad at all of them."""

TensorKind = Literal["batch", "parameter", "buffer"]
"""What a tensor is that a step starts from."""

Origin = Literal["op", "batch", "parameter", "buffer", "declared"]
"""Where a non-finite value begins: at an op whose inputs carried none of that kind; in the data it came with;
in the user's code, which wrote it on purpose."""

DriftKind = Literal[
    "stale-cast", "large-argument", "difference", "long-sum", "running-sum", "choice", "other"
]
"""What the op does at which finite values part from the reference's: reads a cast of a weight that was
changed since; takes a periodic function of a large number; subtracts nearly equal numbers; adds up, in one op
or in many on one line; picks or draws (one rounding turns a choice over); anything else."""

AlternativeKind = Literal["bfloat16", "module-in-fp32", "module-scaled-apart"]
"""What was changed to see whether it helps where no loss scale works."""

# ---------------------------------------------------------------- what a script's loop did

EventKind = Literal[
    "forward",
    "scale",
    "backward",
    "grad",
    "unscale",
    "scaler_step",
    "optimizer_step",
    "update",
    "zero_grad",
    "clip",
    "scheduler",
    "autocast_enter",
    "autocast_exit",
    "save",
    "load",
    "read_scale",
    "read_scaled",
    "penalty",
    "parameter_changed",
    "cast",
    "decay",
    "constant",
]
"""What a loop does around its steps."""

GradientKind = Literal["raw", "scaled", "unscaled", "overdivided", "mixed", "edited"]
"""How a parameter's gradient stands: of a backward without a loss scale; multiplied by one; divided by it
again; divided though it held none; of terms at different scales; changed by the script itself."""

Carrier = Literal["gradient", "penalty", "loss"]
"""What a value with the scale in it was computed from; ``penalty``: gradients that have a graph."""

Examination = Literal["first complete step", "asked for", "not finite"]
"""Why a step was examined."""

# ---------------------------------------------------------------- what is thought of it

Verdict = Literal[
    "bad-input",
    "raises",
    "forward-overflow",
    "forward-underflow",
    "forward-undefined",
    "backward-undefined",
    "no-workable-scale",
    "backward-overflow",
    "gradient-underflow",
    "update-swallowed",
    "drift",
    "clean",
    "not-measured",
]
"""The first that holds, in this order."""

Severity = Literal["error", "warning", "info"]
"""What a finding weighs, the worst first."""

SEVERITIES: tuple[Severity, ...] = get_args(Severity)

Cause = Literal["range", "flush", "cancellation", "genuine"]
"""Why a value was born bad: the format has no such number; rounding had zeroed what it was made of; rounding
had made a difference negative; it is undefined in FP32 as well."""

Standing = Literal["fault", "silent", "consequence", "harmless", "natural", "input"]
"""What a birth means for the outcome; see ``diagnose.standing``."""

AcceptedBy = Literal["waiver", "baseline"]
"""What accepts a finding."""

WaiverUse = Literal["used", "unused", "expired"]
"""What a waiver still does."""

GateStatus = Literal["passed", "failed", "not-measured", "unusable"]
"""What a gate says of one config."""

# ---------------------------------------------------------------- what cures it

TreatmentKind = Literal["loss-scale", "fp32", "scale-per-part", "formulation", "bf16", "formats"]
"""What a treatment changes."""

IslandOutput = Literal["fp32", "cast"]
"""What becomes of the outputs of modules that run in FP32: they stay so, or are cast back."""

# ---------------------------------------------------------------- what was kept of a run

RecordedFor = Literal["loss", "gradients", "skips", "spike"]
"""Why a step was recorded: its loss is no finite number; its gradients hold one that is none; a scaler
skipped many in a row, or at a scale below 1; its loss is far above those before."""

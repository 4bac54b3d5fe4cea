"""What ran where, and at which loss scale: what the numbers of a trace are numbers of."""

from __future__ import annotations

from dataclasses import dataclass

from ampdoctor.facts.words import Mode, Scaler


@dataclass(frozen=True)
class Environment:
    """What ran where."""

    tool_version: str
    torch_version: str
    python_version: str
    device: str
    """``cpu``, ``cuda:0`` ..."""
    device_name: str
    """The GPU's name; '' on a CPU."""
    emulates: str | None
    """``cuda`` where a CPU imitated CUDA's autocast policy and rounding; None where nothing was imitated."""
    mode: Mode
    dtype: str
    """The candidate's low-precision dtype: ``float16`` | ``bfloat16``."""
    loss_scale: float
    """The configured loss scale; of a dynamic scaler the one it starts at."""
    title: str
    """What was scanned: the config's file name or the model target."""
    forward_only: bool
    """True for ``loss: none``."""
    batches: int
    trainable_parameters: int
    """Elements in parameters that require a gradient."""
    scaler: Scaler = "fixed"
    """``none``: ``loss_scale`` is 1."""
    kernel_refusal: str = ""
    """What the compiler of the fused kernel said, where torch's own ops had to count on a GPU instead. ''
    where the kernel did it, where there is no Triton to make it, and on a CPU."""
    own_policy: str = ""
    """``param_dtype bfloat16``: the precision of the model's own wrapper (FSDP2's MixedPrecisionPolicy),
    which does not run here: the configured one does. '' for none."""


@dataclass(frozen=True)
class Settling:
    """Where a dynamic scaler comes to rest, found by running."""

    loss_scale: float
    """The first of start, start / 2, start / 4 ... at which the gradients of every batch are finite."""
    skips: int
    """Steps that it skips on the way there: one for each halving."""

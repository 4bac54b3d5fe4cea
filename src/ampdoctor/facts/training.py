"""What a dynamic loss scaler did in real training steps, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from ampdoctor.facts.environment import Environment
from ampdoctor.facts.scaler_policies import POLICIES
from ampdoctor.facts.trace import Birth


@dataclass(frozen=True)
class ScalerSettings:
    """How the GradScaler was set up."""

    init_scale: float
    growth_factor: float
    backoff_factor: float
    growth_interval: int
    """Steps without overflow after which the scale grows."""


def torch_scaler(init_scale: float, growth_interval: int | None = None) -> ScalerSettings:
    """torch's GradScaler at its defaults, but for the first scale, and the interval where one is given."""
    torch = POLICIES["torch"]
    interval = growth_interval or torch.growth_interval or 0
    return ScalerSettings(init_scale, torch.growth_factor, torch.backoff_factor, interval)


@dataclass(frozen=True)
class StepRecord:
    """One training step."""

    step: int
    """From 0."""
    batch: int
    loss: float | None
    """Unscaled; None where there is none."""
    scale: float
    """The loss scale of this step."""
    skipped: bool
    """The scaler found a non-finite gradient and kept the optimizer from stepping."""
    ceiling: int | None
    """Exponent of the largest power of two at which this step's gradients are finite; None: none from 2^-24
    upwards."""
    bad_parameters: tuple[str, ...]
    """Parameters whose gradient is not finite."""
    cause: Birth | None
    """Where the first non-finite value that reaches a gradient was born, at the scale of the first step that
    went wrong in this way; None for a step that was not skipped."""


@dataclass(frozen=True)
class PlainStep:
    """One FP32 training step: the same batch and the same random draws, without a scaler."""

    batch: int
    loss: float | None
    finite: bool
    """Loss, gradients and the weights after it; where gradients are not, no step was taken."""


@dataclass(frozen=True)
class PlainTraining:
    """The same training in FP32."""

    steps: tuple[PlainStep, ...]
    failure: str = ""
    """What ended it before its time; '' where nothing did."""

    @property
    def diverges_at(self) -> int | None:
        """The first of the steps that are none of them finite, up to the last; None where there are none.

        Some of them must be of a batch that was finite before: a bad batch at the end is no divergence.
        """
        finite = [i for i, step in enumerate(self.steps) if step.finite]
        first = finite[-1] + 1 if finite else 0
        borne = {self.steps[i].batch for i in finite}
        return first if any(step.batch in borne for step in self.steps[first:]) else None

    def fails_at(self, step: int) -> bool:
        """That step was taken, and is not finite."""
        return step < len(self.steps) and not self.steps[step].finite


@dataclass(frozen=True)
class ScalerRun:
    """Training steps with torch's GradScaler."""

    environment: Environment
    optimizer: str
    """Class name."""
    parameter_dtypes: tuple[str, ...]
    """Of the parameters that are trained, each once."""
    settings: ScalerSettings
    requested: int
    """Steps asked for."""
    steps: tuple[StepRecord, ...]
    final_scale: float
    """After the last step's update."""
    refusal: str
    """What torch said where GradScaler refused these gradients; '' where it did not."""
    broken_weights: tuple[str, ...]
    """Parameters that a step which was taken left non-finite. The run ends there."""
    seed: int
    seconds: float
    interrupted: bool
    beside: PlainTraining | None = None
    """The same steps in FP32; None where nothing went wrong that they could have too."""

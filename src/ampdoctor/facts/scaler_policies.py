"""How each framework moves its loss scale, as rules on two counters and one number.

Every figure stands next to the place it is read from: the project's own source, at the defaults with which
its documentation tells people to start.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

GRAD_SCALER_START = 2.0**16
"""The scale at which torch's GradScaler starts."""


@dataclass(frozen=True)
class ScalerPolicy:
    """One framework's rule. A static scale is one that neither grows nor backs off."""

    name: str
    """As ``--policy`` takes it."""
    init_scale: float
    growth_interval: int | None = None
    """Steps without overflow after which the scale grows; None: never."""
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    hysteresis: int = 1
    """Overflows that it takes to back off. All are given back when the scale grows, and only then."""
    min_scale: float = 0.0
    max_scale: float = math.inf
    smallest: float = 2.0**-149
    """A scale below it is 0: FP32's smallest number, where the scale is an FP32 tensor."""
    stops_at_min: bool = False
    """An overflow at ``min_scale`` ends the training with an exception."""


@dataclass(frozen=True)
class ScalerState:
    """Where a policy is between two steps."""

    scale: float
    good_steps: int = 0
    """Steps without overflow since the last overflow or growth."""
    patience: int = 1
    """Overflows until the scale backs off."""
    stopped: bool = False


@dataclass(frozen=True)
class Replay:
    """What a policy does with measured overflow thresholds."""

    policy: ScalerPolicy
    scales: tuple[float, ...]
    """The scale of each step it came to."""
    skipped: tuple[int, ...]
    """The steps that overflow, from 0."""
    final_scale: float
    """After the last step."""
    stopped: bool
    """It gave up with an exception."""


POLICIES: dict[str, ScalerPolicy] = {
    p.name: p
    for p in (
        # pytorch torch/amp/grad_scaler.py, GradScaler.__init__: 2^16, 2.0, 0.5, 2000. The growth is dropped
        # where the new scale is inf in FP32 (aten/src/ATen/native/cuda/AmpKernels.cu, amp_update_scale).
        ScalerPolicy("torch", GRAD_SCALER_START, 2000, max_scale=2.0**127),
        # keras keras/src/optimizers/loss_scale_optimizer.py: initial_scale 2^15, dynamic_growth_steps 2000;
        # halved on a non-finite gradient, without a lower bound.
        ScalerPolicy("keras", 2.0**15, 2000),
        # DeepSpeed deepspeed/runtime/constants.py: FP16_INITIAL_SCALE_POWER_DEFAULT 16, loss_scale_window
        # 1000, hysteresis 2, consecutive_hysteresis False, min_loss_scale 1; runtime/fp16/loss_scaler.py:
        # scale_factor 2, and raise_error_at_min_scale ends the run.
        ScalerPolicy("deepspeed", 2.0**16, 1000, hysteresis=2, min_scale=1.0, stops_at_min=True),
        # apex apex/amp/scaler.py, LossScaler.__init__: init_scale 2^16, scale_window 2000, min_loss_scale
        # None, max_loss_scale 2^24; halves on overflow, a Python number.
        ScalerPolicy("apex", 2.0**16, 2000, max_scale=2.0**24, smallest=0.0),
        # Megatron-LM megatron/core/optimizer/optimizer_config.py: initial_loss_scale 2^32, min_loss_scale 1,
        # loss_scale_window 1000, hysteresis 2; megatron/core/optimizer/__init__.py: growth_factor 2,
        # backoff_factor 0.5; grad_scaler.py: stays at the minimum and goes on.
        ScalerPolicy("megatron", 2.0**32, 1000, hysteresis=2, min_scale=1.0),
    )
}


def static(scale: float) -> ScalerPolicy:
    """A scale that never moves; a step that overflows is skipped."""
    return ScalerPolicy(f"static:{scale:g}", scale, backoff_factor=1.0)


def started(policy: ScalerPolicy) -> ScalerState:
    """The state before the first step."""
    return ScalerState(policy.init_scale, patience=policy.hysteresis)


def after_step(policy: ScalerPolicy, state: ScalerState, overflowed: bool) -> ScalerState:
    """The state after a step, whose gradients were finite or not."""
    if overflowed:
        patience = state.patience - 1
        if patience > 0:
            return replace(state, good_steps=0, patience=patience)
        if policy.stops_at_min and state.scale <= policy.min_scale:
            return replace(state, good_steps=0, stopped=True)
        # The last overflow that was tolerated stays used up: the next one backs off at once.
        scale = max(state.scale * policy.backoff_factor, policy.min_scale)
        return replace(state, scale=scale if scale >= policy.smallest else 0.0, good_steps=0, patience=1)
    good = state.good_steps + 1
    if policy.growth_interval is None or good < policy.growth_interval:
        return replace(state, good_steps=good)
    grown = min(state.scale * policy.growth_factor, max(policy.max_scale, state.scale))
    return replace(state, scale=grown, good_steps=0, patience=policy.hysteresis)


def replay(policy: ScalerPolicy, ceilings: Sequence[int | None]) -> Replay:
    """What the policy does when step i overflows past 2^ceilings[i]; None: at every scale."""
    state = started(policy)
    scales, skipped = [], []
    for step, ceiling in enumerate(ceilings):
        if state.stopped:
            break
        scales.append(state.scale)
        overflowed = ceiling is None or state.scale > math.ldexp(1.0, ceiling)
        if overflowed:
            skipped.append(step)
        state = after_step(policy, state, overflowed)
    return Replay(policy, tuple(scales), tuple(skipped), state.scale, state.stopped)

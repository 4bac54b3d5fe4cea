"""The rules of the training loop, listed by hand in the order of their codes."""

from __future__ import annotations

from ampdoctor.diagnose.loop import (
    backward_under_autocast,
    backward_without_scale,
    clip_before_unscale,
    clip_makes_nan,
    constant_rounded_away,
    divided_by_another_scale,
    divided_twice,
    frozen_average,
    missing_update,
    moved_by_bad_gradients,
    penalty_on_scaled_gradients,
    ranks_scales_differ,
    resumed_without_scaler,
    scale_changed_in_window,
    scale_too_small,
    scaled_gradients_applied,
    scaled_gradients_read,
    scaled_loss_read,
    scaler_with_bfloat16,
    scheduler_on_skipped_step,
    settling,
    stale_casts,
    stale_gradients,
    step_around_scaler,
    step_without_gradients,
    unscaled_in_window,
    update_without_step,
)
from ampdoctor.diagnose.loop.rule import LoopRule
from ampdoctor.diagnose.rules import half_parameters_with_scaler as half

LOOP_RULES: tuple[LoopRule, ...] = (
    clip_before_unscale.RULE,
    clip_makes_nan.RULE,
    step_around_scaler.RULE,
    scaled_gradients_applied.RULE,
    missing_update.RULE,
    scale_changed_in_window.RULE,
    stale_gradients.RULE,
    step_without_gradients.RULE,
    divided_twice.RULE,
    backward_without_scale.RULE,
    scheduler_on_skipped_step.RULE,
    stale_casts.RULE,
    moved_by_bad_gradients.RULE,
    resumed_without_scaler.RULE,
    scale_too_small.RULE,
    scaler_with_bfloat16.RULE,
    frozen_average.RULE,
    constant_rounded_away.RULE,
    unscaled_in_window.RULE,
    settling.RULE,
    penalty_on_scaled_gradients.RULE,
    divided_by_another_scale.RULE,
    backward_under_autocast.RULE,
    scaled_gradients_read.RULE,
    scaled_loss_read.RULE,
    update_without_step.RULE,
    ranks_scales_differ.RULE,
)

OF_BOTH = (LoopRule(half.CODE, half.TITLE, "error", half.RULE.page, half.in_loop),)
"""Rules of a scan that a loop shows as well: the same code, the same page."""

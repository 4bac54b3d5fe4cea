"""The rules, one file each, listed by hand in the order of their codes."""

from __future__ import annotations

from ampdoctor.diagnose.rule import Rule
from ampdoctor.diagnose.rules import (
    backward_overflow,
    backward_undefined,
    flushed_optimizer_eps,
    forward_overflow,
    forward_undefined,
    gradient_drift,
    gradient_underflow,
    half_parameters_with_scaler,
    measured_on_cpu,
    module_never_ran,
    no_workable_scale,
    nonfinite_input,
    not_deterministic,
    observer_effect,
    opaque_kernel,
    raises_in_precision,
    reference_raised,
    scale_outside_window,
    swallowed_updates,
    thin_headroom,
    unrepresentable_constant,
    zeroed_operand,
)

RULES: tuple[Rule, ...] = (
    forward_overflow.RULE,
    forward_undefined.RULE,
    thin_headroom.RULE,
    zeroed_operand.RULE,
    nonfinite_input.RULE,
    unrepresentable_constant.RULE,
    raises_in_precision.RULE,
    backward_overflow.RULE,
    backward_undefined.RULE,
    gradient_underflow.RULE,
    no_workable_scale.RULE,
    scale_outside_window.RULE,
    gradient_drift.RULE,
    swallowed_updates.RULE,
    half_parameters_with_scaler.RULE,
    flushed_optimizer_eps.RULE,
    measured_on_cpu.RULE,
    module_never_ran.RULE,
    opaque_kernel.RULE,
    observer_effect.RULE,
    not_deterministic.RULE,
    reference_raised.RULE,
)

"""What a config asks of the probe (a Plan), of the diagnosis (a Policy) and of the gate (GateRules)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ampdoctor.diagnose.policy import Policy
from ampdoctor.diagnose.rules import RULES
from ampdoctor.diagnose.waivers import Waiver
from ampdoctor.errors import ConfigError
from ampdoctor.facts.scaler_policies import GRAD_SCALER_START
from ampdoctor.facts.words import AS_BUILT, Scaler
from ampdoctor.gate.rules import LIMIT_NAMES, GateRules, Limit
from ampdoctor.probe.plan import Plan

if TYPE_CHECKING:
    from ampdoctor.config import Config
    from ampdoctor.config.schema import PrecisionSection


def plan_of(config: Config) -> Plan:
    """How to run what the config describes."""
    precision = config.precision
    scale, scaler = scale_of(precision)
    return Plan(
        mode=precision.mode,
        dtype=precision.dtype,
        device=precision.device,
        emulate=precision.emulate,
        loss_scale=scale,
        scaler=scaler,
        seed=config.seed,
        scale_margin_bits=config.limits.scale_margin_bits,
        underflow_limit=config.limits.gradient_underflow,
        optimizer_steps=config.optimizer.steps if config.optimizer else Plan.optimizer_steps,
    )


def scale_of(precision: PrecisionSection) -> tuple[float, Scaler]:
    """The scale to begin with, and what moves it. By default BF16 has no scaler, nor what runs as built."""
    wanted = precision.loss_scale
    if isinstance(wanted, float):
        return wanted, "fixed"
    if wanted != "dynamic":
        return wanted.dynamic, "dynamic"
    if precision.dtype == "bfloat16" or precision.mode in AS_BUILT:
        return 1.0, "none"
    return GRAD_SCALER_START, "dynamic"


def policy_of(config: Config, today: str = "") -> Policy:
    """The limits and rules the config asks for; waivers hold as of ``today``, ``2027-01-31``.

    Raises ConfigError for a selection that names no rule: it would find nothing, whatever is wrong.
    """
    limits, rules = config.limits, config.rules
    _check_codes(rules.select, "rules.select")
    return Policy(
        headroom_bits=limits.headroom_bits,
        module_headroom=tuple(
            (glob, own.headroom_bits) for glob, own in limits.modules.items() if own.headroom_bits is not None
        ),
        gradient_underflow=limits.gradient_underflow,
        scale_margin_bits=limits.scale_margin_bits,
        select=tuple(rules.select),
        ignore=tuple(rules.ignore),
        waivers=tuple(
            Waiver(w.code, w.module, w.reason, w.expires.isoformat() if w.expires else "")
            for w in rules.waivers
        ),
        today=today,
    )


def gate_rules_of(config: Config) -> GateRules:
    """What the config's gate demands. A limit counts where it is written; defaults only make findings.

    Raises ConfigError for a code in ``fail_on`` that no rule has.
    """
    limits, gate = config.limits, config.gate
    _check_codes([code for code in gate.fail_on if code.startswith("AMP")], "gate.fail_on")
    stated = [
        Limit(name, "", getattr(limits, name))
        for name in LIMIT_NAMES
        if name in limits.model_fields_set and getattr(limits, name) is not None
    ]
    stated += [
        Limit(name, glob, getattr(own, name))
        for glob, own in limits.modules.items()
        for name in LIMIT_NAMES
        if getattr(own, name) is not None
    ]
    return GateRules(
        fail_on=tuple(gate.fail_on),
        limits=tuple(stated),
        scale_in_window=gate.scale_in_window,
        allow_headroom_loss=gate.allow_headroom_loss,
        allow_underflow_gain=gate.allow_underflow_gain,
    )


def _check_codes(codes: Sequence[str], key: str) -> None:
    for code in codes:
        if not any(rule.code.startswith(code) for rule in RULES):
            raise ConfigError(f"{key}: there is no rule {code}", "`ampdoctor explain` lists all rules")

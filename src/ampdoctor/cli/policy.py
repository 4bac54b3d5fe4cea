"""From the config's words to a Policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampdoctor.diagnose.policy import Policy

if TYPE_CHECKING:
    from ampdoctor.config import Config


def policy_of(config: Config) -> Policy:
    """The limits and rules the config asks for."""
    limits, rules = config.limits, config.rules
    return Policy(
        headroom_bits=limits.headroom_bits,
        module_headroom=tuple(
            (glob, own.headroom_bits) for glob, own in limits.modules.items() if own.headroom_bits is not None
        ),
        gradient_underflow=limits.gradient_underflow,
        scale_margin_bits=limits.scale_margin_bits,
        select=tuple(rules.select),
        ignore=tuple(rules.ignore),
    )

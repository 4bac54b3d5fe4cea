"""Births at a high loss scale next to those at a low one, where no overflow of backward comes between."""

from __future__ import annotations

from collections.abc import Sequence

from ampdoctor.probe.births.newborn import Newborn


def depends_on_scale(births: Sequence[Newborn]) -> bool:
    """True where one was born in backward, or is of the forward and comes through in gradients only."""
    return bool(_in_gradients_only(births)) or any(b.in_phase("backward") for b in births)


def reach_as_at(births: Sequence[Newborn], low: Sequence[Newborn]) -> None:
    """Nothing; births of the forward that the loss does not show reach the gradients that they reach at the
    low scale: at the high one an overflow of backward may have reached them over the same ops."""
    reach = {(b.site, b.value): b.reaches_gradients for b in low}
    for birth in _in_gradients_only(births):
        birth.reaches_gradients = reach.get((birth.site, birth.value), birth.reaches_gradients)


def _in_gradients_only(births: Sequence[Newborn]) -> list[Newborn]:
    return [b for b in births if b.in_phase("forward") and b.reaches_gradients and not b.reaches_loss]

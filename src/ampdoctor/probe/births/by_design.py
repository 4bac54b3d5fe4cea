"""Infinities that FP32 makes as well, as a mask does: a pass with no others needs no second look."""

from __future__ import annotations

from collections.abc import Sequence

from ampdoctor.facts.trace import SiteRecord


def only_as_in_reference(records: Sequence[SiteRecord], reference: Sequence[SiteRecord]) -> bool:
    """No NaN, and infinities only at sites where the reference has as many of them.

    False for a cast, which has no site there, and where the infinities were not counted (on a GPU).
    """
    bad = [r for r in records if not r.stats.is_finite]
    twins = {r.site: r.stats for r in reference if not r.stats.is_finite} if bad else {}
    return all(
        r.stats.nan == 0
        and not r.stats.overflowed
        and (twin := twins.get(r.site)) is not None
        and (twin.nan, twin.inf, twin.shape) == (0, r.stats.inf, r.stats.shape)
        for r in bad
    )

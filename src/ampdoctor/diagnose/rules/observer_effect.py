"""AMP904: measuring changed the result

What it means
    The candidate's loss with instrumentation differs from its loss without,
    though it repeats by itself. The model reacts to being watched: it looks
    at a dispatch mode, a hook or a timer, or the watched run takes another
    kernel. Findings describe the watched run.

How it is found
    The first batch's candidate forward runs again with nothing recorded; the
    losses must agree to the last bit.

What to do
    Report it, with the model, as a bug of ampdoctor, unless the model itself
    branches on such things.
"""

from __future__ import annotations

from collections.abc import Iterable

from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.rule import Rule
from ampdoctor.diagnose.verdict import Reading


def check(reading: Reading) -> Iterable[Finding]:
    """One finding where the unwatched loss is another."""
    if not reading.trace.observer_changed_loss:
        return ()
    return (
        Finding(
            code=CODE,
            severity="warning",
            title=TITLE,
            module="",
            op="",
            source=None,
            message="The loss with instrumentation differs from the loss without it.",
            evidence={},
            remedy="Take the numbers with care, and report the model as a bug of ampdoctor.",
        ),
    )


CODE, TITLE = "AMP904", "measuring changed the result"
RULE = Rule(CODE, TITLE, "warning", __doc__ or "", check)

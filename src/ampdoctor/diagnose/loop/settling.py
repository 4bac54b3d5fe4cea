"""AMP420: the scale settled

What it means
    GradScaler begins at a high scale on purpose and halves it at each
    infinity: the first skipped steps of a run are how it finds its scale, and
    no fault.

How it is found
    Steps were skipped before the first one that was taken.

What to do
    Nothing. A lower init_scale saves those steps.

Example
    Starting from 65,536 it settled at 16,384 after 2 skipped steps.

Sources
    torch.amp.GradScaler, init_scale.
"""

from __future__ import annotations

from collections.abc import Iterable

from ampdoctor.diagnose.loop.rule import LoopRule, finding, of_kind, scale_words
from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.wording import count_words
from ampdoctor.facts.loop import LoopTrace

_REMEDY = "Nothing; a lower init_scale saves those steps."


def check(trace: LoopTrace) -> Iterable[Finding]:
    """One finding for each scaler that skipped steps and then took one."""
    steps = of_kind(trace, "scaler_step")
    for scaler in dict.fromkeys(e.scaler for e in steps):
        own = [e for e in steps if e.scaler == scaler and e.skipped is not None]
        taken = next((n for n, e in enumerate(own) if not e.skipped), None)
        if taken and (own[taken].scale or 0.0) >= 1:  # below, nothing settled: AMP415
            message = (
                f"Settled at {scale_words(own[taken].scale)} after {count_words(taken, 'skipped step')}."
            )
            evidence = {"loss_scale": own[taken].scale, "skipped": taken}
            yield finding(CODE, TITLE, "info", own[taken].source, message, _REMEDY, evidence, taken)


CODE, TITLE = "AMP420", "the scale settled"
RULE = LoopRule(CODE, TITLE, "info", __doc__ or "", check)

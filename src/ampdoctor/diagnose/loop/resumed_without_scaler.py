"""AMP414: resumed without the scaler's state

What it means
    Training goes on from a checkpoint with the weights and the optimizer's
    state, and with a new GradScaler: it starts from its initial scale again
    and skips steps until it is back where it was.

How it is found
    A state was loaded into an optimizer and none into the scaler that is used
    with it afterwards, and that scaler then skipped steps. Where the
    checkpoint was made by the same script, the line that saved it without the
    scaler is named.

What to do
    Save scaler.state_dict() with the others, and load it when resuming.

Example
    torch.save({'model': model.state_dict(), 'opt': opt.state_dict()}, path)

Sources
    open-mmlab/mmcv#1013; huggingface/transformers#11663; Lightning-
    AI/pytorch-lightning#10766.
"""

from __future__ import annotations

from collections.abc import Iterable

from ampdoctor.diagnose.loop.rule import LoopRule, before, finding, of_kind, scale_words
from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.wording import count_words
from ampdoctor.facts.loop import LoopTrace

_REMEDY = "Save scaler.state_dict() in the checkpoint and load it when resuming."


def check(trace: LoopTrace) -> Iterable[Finding]:
    """One finding for the first scaler that begins anew after an optimizer's state was loaded."""
    uses: dict[int, int] = {}
    for event in of_kind(trace, "scale"):
        uses.setdefault(event.scaler, event.order)
    restored = {e.subject for e in of_kind(trace, "load") if e.detail == "scaler"}
    for load in (e for e in of_kind(trace, "load") if e.detail == "optimizer"):
        fresh = [s for s, order in uses.items() if order > load.order and s not in restored]
        if not fresh:
            continue
        scaler = min(fresh, key=lambda s: uses[s])
        steps = [e for e in of_kind(trace, "scaler_step") if e.scaler == scaler and e.subject == load.subject]
        skipped = [e for e in steps if e.skipped]
        if not skipped:
            continue
        saved = before(trace, load, "save")
        while saved is not None and saved.detail != "optimizer":
            saved = before(trace, saved, "save")
        kept = any(e.detail == "scaler" for e in of_kind(trace, "save"))
        source = saved.source if saved is not None and not kept else load.source
        message = (
            f"The optimizer's state was loaded and the scaler's was not: it began again at "
            f"{scale_words(trace.events[uses[scaler]].scale)} and skipped "
            f"{count_words(len(skipped), 'step')}."
        )
        evidence = {"skipped": len(skipped), "loss_scale": trace.events[uses[scaler]].scale}
        yield finding(CODE, TITLE, "warning", source, message, _REMEDY, evidence)
        return


CODE, TITLE = "AMP414", "resumed without the scaler's state"
RULE = LoopRule(CODE, TITLE, "warning", __doc__ or "", check)

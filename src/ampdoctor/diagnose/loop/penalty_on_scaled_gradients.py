"""AMP421: penalty computed on scaled gradients

What it means
    A gradient penalty is computed from gradients of a loss that the loss
    scale multiplies, and nobody divided them: the penalty is the scale (for a
    squared norm its square) times too large, and outweighs the loss.

How it is found
    torch.autograd.grad(..., create_graph=True) was called on a scaled loss,
    and what it gave reached a loss that was scaled in its turn, without
    having been divided by the scale on the way.

What to do
    Divide them: inv_scale = 1.0 / scaler.get_scale(); grads = [g * inv_scale
    for g in grads]. Then compute the penalty, add it to the loss, scale the
    sum.

Example
    grads = torch.autograd.grad(scaler.scale(loss), params,
    create_graph=True); penalty = sum(g.square().sum() for g in grads)

Sources
    The AMP recipes of PyTorch, 'Gradient penalty'.
"""

from __future__ import annotations

from collections.abc import Iterable

from ampdoctor.diagnose.loop.rule import LoopRule, before, by_line, finding, in_steps, of_kind, scale_words
from ampdoctor.diagnose.report import Finding
from ampdoctor.facts.loop import Event, LoopTrace

_REMEDY = "Multiply the gradients by 1 / scaler.get_scale() before the penalty is computed."


def check(trace: LoopTrace) -> Iterable[Finding]:
    """One finding for each line that takes gradients for a penalty which still carry the scale."""
    found: list[Event] = []
    for event in of_kind(trace, "penalty"):
        taken = before(trace, event, "grad")
        while taken is not None and not taken.scaler:
            taken = before(trace, taken, "grad")
        if taken is not None and taken.scale != 1.0 and taken not in found:
            found.append(taken)
    for group in by_line(found):
        message = (
            f"A penalty is computed from gradients that the loss scale ({scale_words(group[0].scale)}) still "
            f"multiplies, {in_steps(group)}."
        )
        evidence = {"loss_scale": group[0].scale}
        yield finding(CODE, TITLE, "error", group[0].source, message, _REMEDY, evidence, len(group))


CODE, TITLE = "AMP421", "penalty computed on scaled gradients"
RULE = LoopRule(CODE, TITLE, "error", __doc__ or "", check)

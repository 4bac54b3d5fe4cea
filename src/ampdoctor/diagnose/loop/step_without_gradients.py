"""AMP408: scaler.step() without gradients

What it means
    GradScaler.step is called for an optimizer none of whose parameters has a
    gradient. torch refuses: 'No inf checks were recorded for this optimizer.'

How it is found
    At the scaler's step no parameter of the optimizer has a gradient.

What to do
    Step only the optimizers whose parameters took part in the backward of
    this step.

Example
    A GAN that trains its generator in every second step, with the
    discriminator frozen, and calls scaler.step(opt_d) in all.

Sources
    AllenCell/cyto-dl#21.
"""

from __future__ import annotations

from collections.abc import Iterable

from ampdoctor.diagnose.loop.rule import LoopRule, by_line, finding, in_steps, of_kind
from ampdoctor.diagnose.report import Finding
from ampdoctor.facts.loop import LoopTrace

_REMEDY = "Step an optimizer only where its parameters took part in a backward."


def check(trace: LoopTrace) -> Iterable[Finding]:
    """One finding for each line that steps an optimizer without a gradient."""
    found = [e for e in of_kind(trace, "scaler_step") if not sum(e.gradients.values())]
    for group in by_line(found):
        message = f"No parameter of this {group[0].subject_type} has a gradient, {in_steps(group)}."
        evidence = {"optimizer": group[0].subject_type, "raised": group[0].raised}
        yield finding(CODE, TITLE, "error", group[0].source, message, _REMEDY, evidence, len(group))


CODE, TITLE = "AMP408", "scaler.step() without gradients"
RULE = LoopRule(CODE, TITLE, "error", __doc__ or "", check)

"""Whether being recorded changes what a model computes, and whether it computes the same twice at all."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ampdoctor.load.workload import Workload
from ampdoctor.probe.passes.forward_only import forward_only
from ampdoctor.probe.passes.one_pass import Run, run_pass
from ampdoctor.probe.watch.unrecorded import Unrecorded


class RecordingEffect(NamedTuple):
    """What runs without recording say. None: not known."""

    deterministic: bool | None
    """The loss repeats to the last bit."""
    changed_loss: bool | None
    """It does, and the recorded loss is another."""
    interrupted: bool


def effect_of_recording(workload: Workload, batch: Any, run: Run, seed: int) -> RecordingEffect:
    """The effect on the loss of ``run``, whose forward is run again with nothing recorded."""
    if run.loss is None or run.raised is not None:
        return RecordingEffect(None, None, False)
    forward = forward_only(workload)

    def unrecorded() -> Run:
        return run_pass(forward, batch, run.precision, seed, Unrecorded)

    first = unrecorded()
    if first.interrupted or first.loss is None:
        return RecordingEffect(None, None, first.interrupted)
    if torch.equal(first.loss, run.loss):
        return RecordingEffect(True, False, False)
    second = unrecorded()
    if second.interrupted or second.loss is None:
        return RecordingEffect(None, None, second.interrupted)
    repeats = torch.equal(first.loss, second.loss)
    return RecordingEffect(repeats, True if repeats else None, False)

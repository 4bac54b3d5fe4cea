"""A training script, run and examined: its loop is watched, and the steps that matter are probed."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ampdoctor.api.bundle_write import Shelf
from ampdoctor.api.flight import Flight
from ampdoctor.api.request import plan_of
from ampdoctor.api.script_capture import Capture, Captured
from ampdoctor.diagnose.engine import diagnose
from ampdoctor.diagnose.policy import Policy
from ampdoctor.diagnose.run_report import Examined, RunReport, run_report
from ampdoctor.errors import AmpDoctorError
from ampdoctor.facts.trace import Trace
from ampdoctor.facts.words import Examination
from ampdoctor.live.recorder import Draft, Recorder
from ampdoctor.live.trigger import Trigger
from ampdoctor.live.watch import LoopWatch
from ampdoctor.load.script.buffers import put_back
from ampdoctor.load.script.program import Ended, Enough, Program, as_main, run_program
from ampdoctor.load.wrappers import without_wrappers
from ampdoctor.probe.scan import probe
from ampdoctor.version import VERSION


@dataclass(frozen=True)
class Wanted:
    """What a run is asked to do."""

    steps: int | None = None
    """Stop after so many steps."""
    step: int | None = None
    """Examine this one instead of the first."""
    until_nan: bool = False
    """Stop at the first step that is not finite, with it examined and before weights are changed."""
    keep_going: bool = False
    """Go on after it all the same."""
    record: Shelf | None = None
    """Keep the steps in which something goes wrong here."""
    overrides: tuple[str, ...] = ()
    """``key=value`` of a config, over what the script does in a step that is examined."""


_MOST_TRIES = 4
"""Skipped steps that are probed for a fault that is not the scale's; each costs seconds."""
_MOST_OPTIMIZERS = 4
"""Those whose first complete step is examined; the same."""


class Examiner:
    """Probes the step that is asked for, before its weights change."""

    def __init__(self, recorder: Recorder, wanted: Wanted, policy: Policy) -> None:
        self.wanted = wanted
        self.policy = policy
        self.recorder = recorder
        self.capture = Capture(recorder, self.turn, self.begins)
        self.capture.asks_skips = lambda: wanted.until_nan or (wanted.step is None and not self._first)
        self.flight = None if wanted.record is None else Flight(recorder, wanted.record, Trigger())
        self.examined: list[Examined] = []
        self.traces: list[Trace] = []
        self.stopped = ""
        self._taken: set[Any] = set()
        """Scalers that have let a step through: what they skip from then on is not settling."""
        self._fault_examined = False
        self._tries = 0
        self._first: dict[Any, int] = {}
        """{optimizer: its first complete step}"""
        self._pending: list[Captured] = []
        """The losses of the first step, while every one is skipped."""

    def begins(self, step: int) -> None:
        """Nothing; the script is stopped where it has done all the steps asked for."""
        if self.wanted.steps is not None and step >= self.wanted.steps:
            self.stopped = f"--steps {self.wanted.steps}"
            raise Enough

    def turn(self, captured: list[Captured], draft: Draft, skipped: bool) -> None:
        """The captured losses are probed, where this is the step to examine."""
        if self.flight is not None:
            self.flight.turn(captured, draft, skipped)
        step = self.recorder.step
        settling = skipped and draft.get("scaler") not in self._taken and self._may_settle(draft)
        if not skipped and draft.get("scaler"):
            self._taken.add(draft["scaler"])
        unfit = (skipped and not settling) or (not skipped and self._is_unfit(draft))
        if self.wanted.step is not None:
            if step == self.wanted.step:
                self._examine(captured, "asked for")
        elif not skipped and not unfit and captured and self._is_first(draft, step):
            self._examine(captured, "first complete step")
        if settling and not self._pending:
            self._pending = captured
        elif not skipped:
            self._pending = []
        if unfit and captured and self._tries < _MOST_TRIES and not self._fault_examined:
            self._tries += 1
            self._fault_examined = self._examine(captured, "not finite")
        if self._fault_examined and unfit and self.wanted.until_nan and not self.wanted.keep_going:
            self.stopped = f"step {step:,} is not finite"
            raise Enough

    def _is_first(self, draft: Draft, step: int) -> bool:
        """The optimizer, which has losses of its own, had no complete step before this one."""
        optimizer = draft.get("subject")
        if optimizer not in self._first and len(self._first) >= _MOST_OPTIMIZERS:
            return False
        return self._first.setdefault(optimizer, step) == step

    def ended(self) -> None:
        """Nothing; where no step was complete, the first that was skipped is examined after all."""
        if self._pending and not self.examined and self.wanted.step is None:
            self._examine(self._pending, "not finite", ended=True)

    def _may_settle(self, draft: Draft) -> bool:
        """A lower scale may be all that this step needs: its loss is finite, its scale not below 1."""
        loss, scale = self.recorder.figures[-1].loss, draft.get("scale")
        return (loss is None or math.isfinite(float(loss))) and (scale is None or float(scale) >= 1)

    def _is_unfit(self, draft: Draft) -> bool:
        """The gradients that an optimizer is about to apply are not finite. Waits for the device."""
        norm = draft.get("norm")
        on_gpu = isinstance(norm, Tensor) and norm.device.type != "cpu"
        if norm is None or (on_gpu and not self.wanted.until_nan):
            return False
        return not math.isfinite(float(norm))

    def _examine(self, captured: list[Captured], why: Examination, ended: bool = False) -> bool:
        """There is something to show. A scale that was too high for a step is not: a scaler is for that.

        Unless the script has ``ended``, and there was no other step.
        """
        shown = False
        for loss in captured:
            try:
                config = loss.config(loss.workload.title, self.wanted.overrides)
                with (
                    torch.inference_mode(False),
                    torch.enable_grad(),
                    put_back(loss.buffers),
                    without_wrappers(loss.workload) as workload,
                ):
                    trace = probe(workload, plan_of(config))
            except AmpDoctorError as error:
                self.capture.not_captured(error)
                continue
            report = diagnose(trace, self.policy)
            settled_by_scaler = loss.scaler is not None and report.verdict in ("backward-overflow", "clean")
            if ended or why != "not finite" or not settled_by_scaler:
                self.traces.append(trace)
                name = f"line {loss.line}" if len(captured) > 1 and loss.line else ""
                self.examined.append(Examined(self.recorder.step, why, name, report))
                shown = True
            if trace.interrupted:
                raise KeyboardInterrupt
        return shown


def _title(program: Program) -> str:
    """The script, and the rank of this process where there are several."""
    several = os.environ.get("WORLD_SIZE", "") not in ("", "0", "1")
    return f"{program.target}, rank {os.environ.get('RANK', '0')}" if several else program.target


def run_script(program: Program, wanted: Wanted, policy: Policy) -> tuple[RunReport, Ended, list[Trace]]:
    """The report on a script, how it ended, and the traces of the steps examined.

    The script runs in this process, as ``python`` would run it.
    """
    recorder = Recorder(_title(program))
    examiner = Examiner(recorder, wanted, policy)
    with LoopWatch(recorder, examiner.capture) as watch:
        ended = run_program(program)
    watch.ranks.exchange(*((0.0,) if ended.interrupted else ()))
    if not ended.interrupted:
        with as_main(program):
            examiner.ended()
    stopped = examiner.stopped
    if ended.interrupted:
        stopped = "interrupted"
    elif ended.status and not ended.stopped:
        last = ended.said.splitlines()[-1] if ended.said else f"exit status {ended.status}"
        stopped = f"the script ended with {last}"
    not_seen = [f"{count} of the losses ({why})" for why, count in examiner.capture.not_replayed.items()]
    if recorder.steps_done and not examiner.examined and not not_seen:
        not_seen.append("all steps (no backward was called from the script whose loss could be run again)")
    not_seen += watch.ranks.not_seen
    report = run_report(
        replace(recorder.trace(), ranks=watch.ranks.scales),
        recorder.steps_done,
        recorder.steps_skipped,
        examiner.examined,
        policy,
        not_seen,
        stopped,
        VERSION,
    )
    return report, ended, examiner.traces

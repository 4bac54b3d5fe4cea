"""A training script, run and examined: its loop is watched, and the steps that matter are probed."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ampdoctor.diagnose.engine import diagnose
from ampdoctor.diagnose.policy import Policy
from ampdoctor.diagnose.run_report import Examined, RunReport, Why, run_report
from ampdoctor.errors import AmpDoctorError
from ampdoctor.facts.trace import Trace
from ampdoctor.live.recorder import Draft, Recorder, scale_of
from ampdoctor.live.watch import LoopWatch
from ampdoctor.load.script.program import Ended, Enough, Program, run_program
from ampdoctor.load.script.replay import workload_of
from ampdoctor.load.script.tape import Tape
from ampdoctor.load.workload import Workload
from ampdoctor.probe.plan import Plan
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


_MOST_TRIES = 4
"""Skipped steps that are probed for a fault that is not the scale's; each costs seconds."""


@dataclass(frozen=True)
class _Captured:
    workload: Workload
    dtypes: tuple[torch.dtype, ...]
    scaler: Any
    name: str
    place: Any
    """The lines of its backward: the same backward of several micro-batches is captured once."""


class Examiner:
    """Listens to a loop, and probes the step that is asked for before its weights change."""

    def __init__(self, recorder: Recorder, wanted: Wanted, policy: Policy) -> None:
        self.recorder = recorder
        self.wanted = wanted
        self.policy = policy
        self.tape = Tape()
        self.examined: list[Examined] = []
        self.traces: list[Trace] = []
        self.not_replayed: dict[str, int] = {}
        """Why losses could not be run again -> how many."""
        self.stopped = ""
        self._captured: list[_Captured] = []
        self._taken: set[Any] = set()
        """Scalers that have let a step through: what they skip from then on is not settling."""
        self._fault_examined = False
        self._tries = 0
        self._first: int | None = None

    # -- what the watch tells

    def function(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Recorded on the tape."""
        self.tape.function(func, args, kwargs, out)

    def root(self, module: nn.Module, args: Any, kwargs: Any, call: Callable[[], Any]) -> Any:
        """Recorded on the tape; the outputs of the call."""
        return self.tape.root(module, args, kwargs, call)

    def same(self, before: Any, after: Any) -> None:
        """Recorded on the tape."""
        self.tape.same(before, after)

    def autocast_inside(self, dtype: torch.dtype) -> None:
        """Recorded on the tape."""
        self.tape.inner_autocast = dtype

    def backward(self, root: Tensor, scaler: Any) -> None:
        """The loss is captured as a workload, while weights are as they were in forward."""
        if self.recorder.step != self.tape.generation:
            self.tape.forget_before(self.recorder.step)
            self._captured.clear()
            self._stop_after_steps()
        place = self.recorder.last_backward
        known = next((c for c in self._captured if c.place == place), None)
        if known is not None:
            return
        try:
            workload, dtypes = workload_of(root, self.tape, self.recorder.script)
        except AmpDoctorError as error:
            self.not_replayed[error.message] = self.not_replayed.get(error.message, 0) + 1
            return
        line = place[0][1] if place else 0
        self._captured.append(_Captured(workload, dtypes, scaler, f"line {line}" if line else "", place))

    def optimizer_turn(self, draft: Draft, skipped: bool) -> None:
        """The captured losses are probed, where this is the step to examine."""
        captured, self._captured = self._captured, []
        step = self.recorder.step
        settling = skipped and draft.get("scaler") not in self._taken
        if not skipped and draft.get("scaler"):
            self._taken.add(draft["scaler"])
        unfit = (skipped and not settling) or (not skipped and self._is_unfit(draft))
        if self.wanted.step is not None:
            if step == self.wanted.step:
                self._examine(captured, "asked for")
        elif not skipped and not unfit and (self._first is None or self._first == step) and captured:
            self._first = step
            self._examine(captured, "first complete step")
        if unfit and captured and self._tries < _MOST_TRIES and not self._fault_examined:
            self._tries += 1
            self._fault_examined = self._examine(captured, "not finite")
        if self._fault_examined and unfit and self.wanted.until_nan and not self.wanted.keep_going:
            self.stopped = f"step {step:,} is not finite"
            raise Enough

    # -- what it does with it

    def _is_unfit(self, draft: Draft) -> bool:
        """The gradients that an optimizer is about to apply are not finite. Waits for the device."""
        norm = draft.get("norm")
        on_gpu = isinstance(norm, Tensor) and norm.device.type != "cpu"
        if norm is None or (on_gpu and not self.wanted.until_nan):
            return False
        return not math.isfinite(float(norm))

    def _stop_after_steps(self) -> None:
        if self.wanted.steps is not None and self.recorder.step >= self.wanted.steps:
            self.stopped = f"--steps {self.wanted.steps}"
            raise Enough

    def _examine(self, captured: list[_Captured], why: Why) -> bool:
        """There is something to show. A scale that was too high for a step is not: a scaler is for that."""
        shown = False
        for loss in captured:
            scale = scale_of(loss.scaler) if loss.scaler is not None else 1.0
            try:
                with torch.inference_mode(False), torch.enable_grad():
                    trace = probe(loss.workload, _plan(loss, float(scale or 1.0)))
            except AmpDoctorError as error:
                self.not_replayed[error.message] = self.not_replayed.get(error.message, 0) + 1
                continue
            report = diagnose(trace, self.policy)
            settled_by_scaler = loss.scaler is not None and report.verdict in ("backward-overflow", "clean")
            if why != "not finite" or not settled_by_scaler:
                self.traces.append(trace)
                name = loss.name if len(captured) > 1 else ""
                self.examined.append(Examined(self.recorder.step, why, name, report))
                shown = True
            if trace.interrupted:
                raise KeyboardInterrupt
        return shown


def _plan(loss: _Captured, scale: float) -> Plan:
    """How the script itself runs this loss."""
    first = next(loss.workload.model.parameters(), None)
    device = "cpu" if first is None else str(first.device)
    low = [d for d in loss.dtypes if d in (torch.float16, torch.bfloat16)]
    if low:
        return Plan(dtype=str(low[0]).removeprefix("torch."), device=device, loss_scale=scale)
    built = {p.dtype for p in loss.workload.model.parameters()}
    dtype = "bfloat16" if torch.bfloat16 in built else "float16"
    return Plan(mode="none", dtype=dtype, device=device, loss_scale=scale)


def _title(program: Program) -> str:
    """The script, and the rank of this process where there are several."""
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    return f"{program.target}, rank {os.environ.get('RANK', '0')}" if several else program.target


def run_script(program: Program, wanted: Wanted, policy: Policy) -> tuple[RunReport, Ended, list[Trace]]:
    """The report on a script, how it ended, and the traces of the steps examined.

    The script runs in this process, as ``python`` would run it.
    """
    recorder = Recorder(_title(program))
    examiner = Examiner(recorder, wanted, policy)
    with LoopWatch(recorder, examiner):
        ended = run_program(program)
    stopped = examiner.stopped
    if ended.interrupted:
        stopped = "interrupted"
    elif ended.status and not ended.stopped:
        last = ended.said.splitlines()[-1] if ended.said else f"exit status {ended.status}"
        stopped = f"the script ended with {last}"
    not_seen = [f"{count} of the losses ({why})" for why, count in examiner.not_replayed.items()]
    report = run_report(
        recorder.trace(), recorder.steps_done, examiner.examined, policy, not_seen, stopped, VERSION
    )
    return report, ended, examiner.traces

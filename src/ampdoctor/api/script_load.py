"""A step of a training script in a config's place: the script runs up to it, and stands still."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ampdoctor.api.script_capture import Capture, Captured
from ampdoctor.api.settings import config_of
from ampdoctor.config import Config
from ampdoctor.diagnose.wording import count_words
from ampdoctor.errors import LoadError
from ampdoctor.live.recorder import Draft, Recorder
from ampdoctor.live.watch import LoopWatch
from ampdoctor.load.script.buffers import put_back
from ampdoctor.load.script.program import Ended, Enough, Program, as_main, run_program
from ampdoctor.load.workload import Workload
from ampdoctor.load.wrappers import without_wrappers

_MOST_SKIPS = 32
"""Steps skipped in a row after which the scale is not settling: from 65,536 it is then below 2^-16."""


@dataclass
class _Standstill:
    """Stops a script at the turn of the optimizer whose losses are asked for."""

    recorder: Recorder
    wanted: int | None
    losses: list[Captured] = field(default_factory=list)
    """Of the step to take; until it comes, of the first one, which a scaler skipped."""
    step: int = 0
    skips: int = 0

    def turn(self, captured: list[Captured], draft: Draft, skipped: bool) -> None:
        if not captured or (self.wanted is not None and self.recorder.step != self.wanted):
            return
        self.skips = self.skips + 1 if skipped else 0
        if not self.losses or not skipped:
            self.losses, self.step = captured, self.recorder.step
        if self.wanted is not None or not skipped or self.skips >= _MOST_SKIPS:
            raise Enough


@contextmanager
def scripted(
    program: Program, step: int | None = None, line: int | None = None, overrides: Sequence[str] = ()
) -> Iterator[tuple[Workload, Config]]:
    """A loss of one step of the script, before its weights change, and how the script runs it, as a config.

    The step is ``step``, else the first that no scaler skips, else the first. ``line``: that of
    the backward, where a step has several. ``overrides``: ``key=value`` over what the script does. Raises
    LoadError where the script ends before such a step, or the step cannot be run again.
    """
    config_of(program.target, overrides)  # what is wrong in them is said before the script runs
    recorder = Recorder(program.target)
    still = _Standstill(recorder, step)
    capture = Capture(recorder, still.turn, lambda _: None)
    with as_main(program):
        with LoopWatch(recorder, capture):
            ended = run_program(program)
        if ended.interrupted:
            raise KeyboardInterrupt
        if not still.losses:
            raise _no_step(program, step, recorder.steps_done, ended, list(capture.not_replayed))
        loss = _chosen(still.losses, line, still.step)
        with put_back(loss.buffers), without_wrappers(loss.workload) as workload:
            yield workload, loss.config(program.target, overrides)


def _chosen(losses: list[Captured], line: int | None, step: int) -> Captured:
    lines = ", ".join(str(loss.line) for loss in losses)
    if line is None and len(losses) == 1:
        return losses[0]
    if line is None:
        raise LoadError(
            f"step {step:,} has {count_words(len(losses), 'backward')}, in lines {lines}",
            f"choose one: --backward {losses[0].line}",
        )
    found = next((loss for loss in losses if loss.line == line), None)
    if found is None:
        raise LoadError(f"--backward {line}: the backwards of step {step:,} are in lines {lines}")
    return found


def _no_step(program: Program, step: int | None, done: int, ended: Ended, reasons: list[str]) -> LoadError:
    """Why there is nothing to take from the script."""
    if reasons:
        return LoadError(
            f"no step of {program.target} can be run again: {reasons[0]}",
            "ampdoctor run watches its loop all the same",
            ended.said,
        )
    how = f" with {ended.said.splitlines()[-1]}" if ended.said else ""
    before = f"step {step:,}" if step is not None else "an optimizer had a turn"
    hint = "--step counts from 0" if step is not None and done else "its own arguments come after --"
    message = f"{program.target} ended{how} after {count_words(done, 'step')}, before {before}"
    return LoadError(message, hint, ended.said)

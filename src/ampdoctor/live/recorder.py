"""The events of a loop while it runs: kept with their tensors, which are read only when someone asks."""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ampdoctor.facts.loop import Event, LoopTrace, Moment
from ampdoctor.facts.words import EventKind
from ampdoctor.live.gradients import GradientBook
from ampdoctor.live.lines import Stack, condition_of, loop_line, user_stack
from ampdoctor.probe.watch.location import source_of

MOST_EVENTS = 200_000
"""About 100 MB of lines and numbers; later events are not kept, and the trace says so."""
_MOST_UNREAD = 4096
"""Tensors of one number that wait on a device; then they are read together."""

_MAY_GROW = 64
"""Events from the end that may still get a figure: a step's skips are known when it is over."""
_MOST_MOMENTS = 20_000
"""Steps that the timeline has at most; of a longer run it has every second, fourth ... one."""

Draft = dict[str, Any]


@dataclass
class _Figures:
    step: int = 0
    loss: Any = None
    scale: Any = None
    norm: Any = None
    norm_is_scaled: bool = False
    attempts: list[Draft] = field(default_factory=list)
    stack: Stack = ()


class Recorder:
    """Events in the order they happen, and the step that each belongs to."""

    def __init__(self, script: str) -> None:
        self.script = script
        self.book = GradientBook()
        self.step = 0
        self.drafts: list[Draft] = []
        self.figures: list[_Figures] = [_Figures()]
        self.complete = True
        self.every = 1
        """The timeline has one in so many steps, and the last."""
        self._left_out: list[_Figures] = []
        """Steps that the timeline has not, until they are read."""
        self._skipped_left_out = 0
        self.last_backward: Stack = ()
        self.last_grad = 0
        """The order of the last call of torch.autograd.grad."""
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._count = 0
        self._unread = 0
        self._read_until = 0
        self._seen_backwards: set[Stack] = set()
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._turns: set[int] = set()
        """The optimizers that had their turn in this step."""
        self._turn_ended = 0
        """The order of the first event after the last turn."""

    @property
    def order(self) -> int:
        """The order that the next event gets."""
        return len(self.drafts)

    def number(self, thing: object) -> int:
        """A number of its own for an optimizer, a scaler, a region; the same whenever it comes."""
        try:
            known = self._numbers.get(thing)
        except TypeError:  # a wrapper of the user's that cannot be hashed or referred to weakly
            return id(thing)
        if known is None:
            self._count += 1
            known = self._numbers[thing] = self._count
        return known

    def emit(self, kind: EventKind, *, conditional: bool = False, **facts: Any) -> Draft:
        """The draft of an event that happens now; it can be added to until it is read."""
        stack = facts.pop("stack", None) or user_stack()
        draft: Draft = {
            "order": len(self.drafts),
            "step": self.step,
            "kind": kind,
            "line": stack[0] if stack else None,
            "loop": loop_line(stack, self.last_backward) if self.last_backward else None,
            "conditional": conditional,
            **facts,
        }
        if len(self.drafts) < MOST_EVENTS:
            self.drafts.append(draft)
        else:
            self.complete = False
        self._unread += sum(isinstance(v, Tensor) for v in facts.values())
        if self._unread > _MOST_UNREAD:
            self.read()
        return draft

    # -- steps

    def know_optimizer(self, optimizer: Any) -> None:
        """Nothing; a step may wait for this optimizer's turn."""
        self._optimizers.add(optimizer)

    def begin_backward(self, stack: Stack) -> None:
        """Nothing; the next step begins where all optimizers had their turn, or a backward comes again."""
        over = self._turns and self._turns >= {self.number(o) for o in self._optimizers}
        if over or (self._turns and stack in self._seen_backwards):
            self._begin_step()
        self._seen_backwards.add(stack)
        self.last_backward = stack
        self.figures[-1].stack = stack

    def attempted(self, draft: Draft) -> None:
        """Nothing; an optimizer has its turn now, whether or not it moves anything."""
        since = {late["kind"] for late in self.drafts[self._turn_ended :]}
        if draft["subject"] in self._turns and "grad" in since and "backward" not in since:
            self._begin_step()  # of a loop that calls torch.autograd.grad, and no backward
            for late in self.drafts[self._turn_ended :]:
                late["step"] = self.step
        if not self.figures[-1].stack and draft["line"] is not None:
            self.figures[-1].stack = (draft["line"],)
        self._turns.add(draft["subject"])
        self._turn_ended = len(self.drafts)
        self.figures[-1].attempts.append(draft)

    def _begin_step(self) -> None:
        self.step += 1
        self._thin()
        self.figures.append(_Figures(self.step))
        self._seen_backwards.clear()
        self._turns.clear()

    @property
    def steps_done(self) -> int:
        """Steps whose optimizer had its turn."""
        return self.step + bool(self._turns)

    @property
    def steps_skipped(self) -> int:
        """Of those, the ones that every scaler concerned skipped."""
        self.read()
        return self._skipped_left_out + sum(_skipped(figures) for figures in self.figures)

    def _thin(self) -> None:
        """Nothing; the timeline stays short: of a very long run it has one in so many steps."""
        if self.figures[-1].step % self.every:
            self._left_out.append(self.figures.pop())
        if len(self.figures) >= _MOST_MOMENTS:
            self.every *= 2
            self._left_out += [f for f in self.figures if f.step % self.every]
            self.figures = [f for f in self.figures if f.step % self.every == 0]
        if len(self._left_out) > _MOST_UNREAD:
            self.read()

    # -- reading

    def read(self) -> None:
        """Nothing; every tensor that waits is a number now."""
        for draft in self.drafts[self._read_until :]:
            _read_all(draft)
        for figures in (*self.figures, *self._left_out):
            _read_all(vars(figures))
            for draft in figures.attempts:  # those past the events that are kept are here only
                _read_all(draft)
        self._skipped_left_out += sum(_skipped(figures) for figures in self._left_out)
        self._left_out = []
        # the last ones may still be added to
        self._read_until = max(len(self.drafts) - _MAY_GROW, 0)
        self._unread = 0

    def trace(self) -> LoopTrace:
        """What was recorded until now, as facts."""
        self.read()
        return LoopTrace(
            self.script,
            tuple(_event(draft) for draft in self.drafts),
            tuple(self._moments()),
            self.complete,
            self.every,
        )

    def timeline(self) -> list[Moment]:
        """The steps until now, in figures."""
        self.read()
        return self._moments()

    def _moments(self) -> list[Moment]:
        found = []
        for figures in self.figures:
            if not figures.stack:
                continue
            norm, scale = figures.norm, figures.scale
            if norm is not None and figures.norm_is_scaled and scale:
                norm = norm / scale
            line = source_of(figures.stack[0])
            found.append(Moment(figures.step, figures.loss, scale, norm, _skipped(figures), line))
        return found


def _skipped(figures: _Figures) -> bool:
    tried = [d for d in figures.attempts if "skipped" in d]
    return bool(tried) and all(d["skipped"] for d in tried)


def _read_all(values: dict[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, Tensor):
            values[key] = value.item()


def _event(draft: Draft) -> Event:
    facts = {k: v for k, v in draft.items() if k not in ("line", "loop", "conditional", "norm")}
    if "skipped" in facts and facts["skipped"] is not None:
        facts["skipped"] = bool(facts["skipped"])
    if "finite" not in facts and "norm" in draft and draft["norm"] is not None:
        facts["finite"] = math.isfinite(draft["norm"])
    return Event(
        source=source_of(draft["line"]),
        loop=source_of(draft["loop"]),
        condition=condition_of(draft["line"]) if draft["conditional"] else None,
        **facts,
    )


def kept(value: Tensor | float | None) -> Tensor | float | None:
    """A copy of a tensor of one number, where it lies: what it holds now, to be read later."""
    if isinstance(value, Tensor):
        return value.detach().clone() if value.numel() == 1 else None
    return value


def scale_of(scaler: Any) -> Tensor | float | None:
    """The scaler's scale, not read from its device."""
    scale = getattr(scaler, "_scale", None)
    if scale is None:
        return float(getattr(scaler, "_init_scale", 0.0)) or None
    return kept(scale)


def found_inf_of(scaler: Any, optimizer: Any) -> Tensor | None:
    """How often unscaling its gradients found a NaN or an infinity; None where that was not done yet."""
    state = scaler._per_optimizer_states.get(id(optimizer))
    found = list(state["found_inf_per_device"].values()) if state else []
    if not found:
        return None
    total: Tensor = torch.stack([v.detach().reshape(()).to(found[0].device) for v in found]).sum()
    return total

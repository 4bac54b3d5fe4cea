"""The turns of optimizers and schedulers, as events."""

from __future__ import annotations

from typing import Any

import torch

from ampdoctor.live.around import Around, device_of, parameters_of
from ampdoctor.live.recorder import kept


class OptimizerCalls:
    """Hooks on every optimizer's step, and a wrapper for the steps of schedulers."""

    def __init__(self, around: Around) -> None:
        self.around = around
        self.recorder = around.recorder
        self.listener = around.listener
        self._scheduling = False

    # -- optimizers and schedulers

    @property
    def _not_the_scripts(self) -> bool:
        """This step is taken in another process, or by whoever examines one."""
        return self.around.elsewhere or (self.around.busy and self.around.scaler_step is None)

    def before_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._not_the_scripts:
            if self.around.stepped_inside is not None and not self.around.elsewhere:
                self.around.stepped_inside.append((optimizer, len(parameters_of(optimizer))))
            return
        recorder = self.recorder
        with self.around.aside():
            parameters = parameters_of(optimizer)
            recorder.book.know(parameters)
            inside = self.around.scaler_step
            if inside is None:  # else the scaler's step has just looked
                recorder.book.refresh()
            draft = recorder.emit(
                "optimizer_step", subject=recorder.number(optimizer), subject_type=type(optimizer).__name__,
                gradients=recorder.book.counts(parameters),
                scaler=0 if inside is None else recorder.number(inside[0]),
                norm=inside[1]["norm"] if inside is not None else recorder.book.norm(parameters),
                detail="autocast" if torch.is_autocast_enabled(device_of(parameters)) else "",
            )  # fmt: skip
            closure = args[1] if len(args) > 1 else kwargs.get("closure")
            if closure is not None:
                # forward and backward are yet to come, inside: their end is this optimizer's turn
                self.around.turn_after_backward = draft
                return
            if inside is None:
                self.around.take_turn(draft, optimizer)
            else:
                skipped = False
                if hasattr(optimizer, "found_inf"):  # a fused one, which skips inside
                    found = optimizer.found_inf
                    known = found.device.type == "cpu" or self.listener.wants_skips
                    skipped = known and bool(found)
                    inside[1]["skipped"] = skipped if known else kept(found)
                if not skipped:
                    self.around.tell_turn(draft, False, optimizer)
        self.around.mode.muted = True

    def after_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._not_the_scripts:
            self.around.mode.muted = False
            self.around.turn_after_backward = None
            with self.around.aside():  # else each look at a gradient is taken for the script's
                self.recorder.book.kept(parameters_of(optimizer))

    def scheduler(self, original: Any) -> Any:
        def step(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            # the first step is taken by the scheduler's own constructor; some schedulers step others
            first = getattr(scheduler, "_is_initial", False) or getattr(scheduler, "_step_count", 0) < 1
            if not (self.around.off or self._scheduling or first):
                self.recorder.emit(
                    "scheduler", conditional=True, subject=self.recorder.number(scheduler),
                    subject_type=type(scheduler).__name__,
                    accumulates_onto=self.recorder.number(getattr(scheduler, "optimizer", scheduler)),
                )  # fmt: skip
            before, self._scheduling = self._scheduling, True
            try:
                with self.around.aside():
                    return original(scheduler, *args, **kwargs)
            finally:
                self._scheduling = before

        return step

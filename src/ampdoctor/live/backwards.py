"""Backward passes, clipping and clearing of gradients, as events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ampdoctor.facts.words import GradientKind
from ampdoctor.live.around import Around, parameters_of
from ampdoctor.live.gradients import norm_of
from ampdoctor.live.lines import Stack, user_stack
from ampdoctor.live.recorder import kept, scale_of


class GradientCalls:
    """Wrappers for what makes, clips and clears gradients."""

    def __init__(self, around: Around) -> None:
        self.around = around
        self.recorder = around.recorder
        self.listener = around.listener

    # -- gradients

    def add_param_group(self, original: Any) -> Any:
        def add_param_group(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            result = original(optimizer, *args, **kwargs)
            if not self.around.off:
                self.recorder.book.know(parameters_of(optimizer))
                self.recorder.know_optimizer(optimizer)
            return result

        return add_param_group

    def zero_grad(self, original: Any) -> Any:
        def zero_grad(owner: Any, *args: Any, **kwargs: Any) -> Any:
            if self.around.off:
                return original(owner, *args, **kwargs)
            with self.around.aside():
                self.recorder.book.refresh()
                parameters = parameters_of(owner)
                draft = self.recorder.emit(
                    "zero_grad", conditional=True, subject=self.recorder.number(owner),
                    gradients=self.recorder.book.counts(parameters),
                )  # fmt: skip
                result = original(owner, *args, **kwargs)
                self.recorder.book.cleared(parameters)
                draft["value"] = float(len(parameters))
            return result

        return zero_grad

    def tensor_backward(self, original: Any) -> Any:
        def backward(tensor: Tensor, gradient: Any = None, *args: Any, **kwargs: Any) -> Any:
            run = partial(original, tensor, gradient, *args, **kwargs)
            return run() if self.around.off else self._run_backward([tensor], run)

        return backward

    def backward(self, original: Any) -> Any:
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            run = partial(original, tensors, *args, **kwargs)
            roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
            return run() if self.around.off else self._run_backward(roots, run)

        return backward

    def _run_backward(self, roots: list[Tensor], run: Callable[[], Any]) -> Any:
        recorder = self.recorder
        self.around.mode.muted = False  # an optimizer that raised has not said that it is done
        with self.around.aside():
            recorder.begin_backward(stack := user_stack())
            recorder.book.refresh()
            scaler = next((s for r in roots if (s := self.around.losses.scaler_of(r)) is not None), None)
            scale = None if scaler is None else scale_of(scaler[0])
            figures = recorder.figures[-1]
            figures.loss = kept(roots[0].float() if scaler is None else scaler[1])
            figures.scale = scale
            draft = recorder.emit(
                "backward", stack=stack, scale=scale,
                scaler=0 if scaler is None else recorder.number(scaler[0]),
                detail="autocast" if torch.is_autocast_enabled(roots[0].device.type) else "",
            )  # fmt: skip
            self.listener.backward(roots[0], None if scaler is None else scaler[0])
            self.around.stepped_inside = []
            try:
                result = run()
            finally:
                stepped, self.around.stepped_inside = self.around.stepped_inside, None
            scaled_now = scaler is not None or self.around.losses.by_hand(roots)
            touched = recorder.book.backward(draft["order"], scaled_now)
            kinds: dict[Any, int] = {}
            for _, kind, _ in touched:
                if kind is not None:
                    kinds[kind] = kinds.get(kind, 0) + 1
            draft["gradients"] = kinds
            scaled = [since for _, kind, since in touched if kind == "scaled"]
            draft["accumulates_onto"] = min(scaled, default=None)
            draft["value"] = float(len(touched))
            turn, self.around.turn_after_backward = self.around.turn_after_backward, None
            if turn is not None:
                turn["norm"] = norm_of([parameter for parameter, _, _ in touched])
                self.around.take_turn(turn)
            if stepped:
                self._stepped_inside(stepped, "scaled" if scaled_now else "raw", stack)
        return result

    def _stepped_inside(self, stepped: list[tuple[Any, int]], kind: GradientKind, stack: Stack) -> None:
        """One turn for all optimizers that hooks of parameters stepped while a backward ran."""
        optimizer, _ = stepped[0]
        draft = self.recorder.emit(
            "optimizer_step", stack=stack, subject=self.recorder.number(optimizer),
            subject_type=type(optimizer).__name__, gradients={kind: sum(n for _, n in stepped)}, norm=None,
        )  # fmt: skip
        self.recorder.attempted(draft)
        self.listener.stepped_inside_backward()

    def grad(self, original: Any) -> Any:
        def grad(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            if self.around.off:
                return original(outputs, *args, **kwargs)
            roots = [outputs] if isinstance(outputs, Tensor) else list(outputs)
            scaler = next((s for r in roots if (s := self.around.losses.scaler_of(r)) is not None), None)
            draft = self.recorder.emit(
                "grad", scale=None if scaler is None else scale_of(scaler[0]),
                scaler=0 if scaler is None else self.recorder.number(scaler[0]),
                detail="create_graph" if kwargs.get("create_graph") else "",
            )  # fmt: skip
            self.recorder.last_grad = draft["order"]
            with self._self_busy():
                gradients = original(outputs, *args, **kwargs)
            if scaler is not None or self.around.losses.by_hand(roots):
                taken = (g for g in gradients if isinstance(g, Tensor))
                self.around.mode.scaled.know(taken, "penalty" if kwargs.get("create_graph") else "gradient")
            return gradients

        return grad

    @contextmanager
    def _self_busy(self) -> Iterator[None]:
        before, self.around.busy = self.around.busy, True
        try:
            yield
        finally:
            self.around.busy = before

    def clip(self, original: Any) -> Any:
        def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            if self.around.off:
                return original(parameters, *args, **kwargs)
            with self.around.aside():
                listed = [parameters] if isinstance(parameters, Tensor) else list(parameters)
                book = self.recorder.book
                book.refresh()
                draft = self.recorder.emit(
                    "clip", gradients=book.counts(listed), detail=original.__name__,
                    norm=norm_of(listed) if original.__name__ == "clip_grad_value_" else None,
                )  # fmt: skip
                result = original(listed, *args, **kwargs)
                book.kept(listed)
                if isinstance(result, Tensor):
                    draft["norm"] = kept(result)
                    largest = _largest_norm(*args, **kwargs)
                    if largest is not None:
                        book.clipped(listed, result.detach(), largest)
            return result

        return clip


def _largest_norm(max_norm: Any, norm_type: Any = 2.0, *_: Any, **__: Any) -> float | None:
    """What clip_grad_norm_ with these arguments clips to; None for another norm than the 2-norm."""
    return float(max_norm) if norm_type == 2 and isinstance(max_norm, (int, float)) else None

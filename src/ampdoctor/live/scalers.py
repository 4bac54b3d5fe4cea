"""What a GradScaler is asked to do, as events."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.amp import GradScaler

from ampdoctor.facts.words import GradientKind
from ampdoctor.live.around import Around, autocast_dtype_of, dtypes_of, parameters_of
from ampdoctor.live.recorder import Draft, found_inf_of, scale_of


class ScalerCalls:
    """Wrappers for the methods of GradScaler."""

    def __init__(self, around: Around) -> None:
        self.around = around
        self.recorder = around.recorder
        self.listener = around.listener

    # -- the scaler

    def scale(self, original: Any) -> Any:
        def scale(scaler: GradScaler, outputs: Any) -> Any:
            if self.around.off or not scaler.is_enabled():
                return original(scaler, outputs)
            with self.around.aside():
                scaled = original(scaler, outputs)
                self.recorder.emit(
                    "scale", scaler=self.recorder.number(scaler), scale=scale_of(scaler),
                    dtype=autocast_dtype_of(outputs),
                )  # fmt: skip
                self.around.losses.know(scaler, outputs, scaled)
                plain = [outputs] if isinstance(outputs, Tensor) else list(outputs)
                if any(self.around.mode.scaled.carrier(t) == "penalty" for t in plain):
                    self.recorder.emit("penalty")
                losses = [scaled] if isinstance(scaled, Tensor) else list(scaled)
                self.around.mode.scaled.know((t for t in losses if t.requires_grad), "loss")
                self.listener.same(outputs, scaled)
            return scaled

        return scale

    def unscale(self, original: Any) -> Any:
        def unscale_(scaler: GradScaler, optimizer: Any) -> Any:
            if self.around.off or not scaler.is_enabled():
                return original(scaler, optimizer)
            with self.around.aside():
                draft = self._unscale_event(scaler, optimizer)
                try:
                    return original(scaler, optimizer)
                except Exception as error:
                    draft["raised"] = f"{type(error).__name__}: {error}"
                    raise

        return unscale_

    def _unscale_event(self, scaler: Any, optimizer: Any) -> Draft:
        book, parameters = self.recorder.book, parameters_of(optimizer)
        book.know(parameters)
        book.refresh()
        first: GradientKind = "raw" if book.counts(parameters).get("raw") else "scaled"
        return self.recorder.emit(
            "unscale", subject=self.recorder.number(optimizer), scaler=self.recorder.number(scaler),
            scale=scale_of(scaler), gradients=book.counts(parameters),
            accumulates_onto=book.earliest(parameters, first), dtype=dtypes_of(parameters),
        )  # fmt: skip

    def unscale_grads(self, original: Any) -> Any:
        def _unscale_grads_(scaler: Any, optimizer: Any, inv_scale: Any, found: Any, allow: bool) -> Any:
            result = original(scaler, optimizer, inv_scale, found, allow)
            if not self.around.elsewhere and self.recorder.drafts:
                parameters = parameters_of(optimizer)
                book = self.recorder.book
                last = self.recorder.drafts[-1]
                if allow:  # a fused optimizer divides by the scale itself: this only looks for infinities
                    book.kept(parameters)
                    return result
                if last["kind"] != "unscale" or last.get("subject") != self.recorder.number(optimizer):
                    last = self._unscale_event(scaler, optimizer)
                    last["detail"] = "by step"
                if last["gradients"].get("unscaled"):
                    last["accumulates_onto"] = book.unscaled_at(parameters)
                book.unscaled(parameters, last["order"])
                self.around.mode.scaled.forget(p.grad for p in parameters if p.grad is not None)
            return result

        return _unscale_grads_

    def step(self, original: Any) -> Any:
        def step(scaler: GradScaler, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if self.around.off or not scaler.is_enabled():
                return original(scaler, optimizer, *args, **kwargs)
            recorder = self.recorder
            with self.around.aside():
                parameters = parameters_of(optimizer)
                recorder.book.know(parameters)
                recorder.book.refresh()
                draft = recorder.emit(
                    "scaler_step", subject=recorder.number(optimizer), subject_type=type(optimizer).__name__,
                    scaler=recorder.number(scaler), scale=scale_of(scaler),
                    gradients=recorder.book.counts(parameters), dtype=dtypes_of(parameters),
                    norm=recorder.book.norm(parameters),
                )  # fmt: skip
                recorder.attempted(draft)
                figures = recorder.figures[-1]
                figures.norm = draft["norm"]
                figures.norm_is_scaled = not draft["gradients"].get("unscaled")
                outer, self.around.scaler_step = self.around.scaler_step, (scaler, draft)
                try:
                    result = original(scaler, optimizer, *args, **kwargs)
                except Exception as error:
                    draft["raised"] = f"{type(error).__name__}: {error}"
                    raise
                finally:
                    self.around.scaler_step = outer
                if "skipped" not in draft:
                    draft["skipped"] = found_inf_of(scaler, optimizer)
                moved = any(d["kind"] == "optimizer_step" for d in recorder.drafts[draft["order"] + 1 :])
                # torch has read found_inf itself; not that of a fused optimizer, which is known or not asked
                if not moved or isinstance(draft["skipped"], bool):
                    skipped = draft["skipped"] is not None and bool(draft["skipped"])
                    if skipped:
                        self.around.tell_turn(draft, True, optimizer)
            return result

        return step

    def update(self, original: Any) -> Any:
        def update(scaler: GradScaler, *args: Any, **kwargs: Any) -> Any:
            if self.around.off or not scaler.is_enabled():
                return original(scaler, *args, **kwargs)
            with self.around.aside():
                draft = self.recorder.emit(
                    "update", scaler=self.recorder.number(scaler), scale=scale_of(scaler),
                    gradients=self.recorder.book.counts(),
                )  # fmt: skip
                try:
                    result = original(scaler, *args, **kwargs)
                except Exception as error:
                    draft["raised"] = f"{type(error).__name__}: {error}"
                    raise
                draft["scale_after"] = scale_of(scaler)
            return result

        return update

    def get_scale(self, original: Any) -> Any:
        def get_scale(scaler: GradScaler) -> Any:
            if self.around.off:
                return original(scaler)
            self.recorder.emit("read_scale", scaler=self.recorder.number(scaler))
            with self.around.aside():
                value = original(scaler)
            self.around.mode.scales_read.add(value)
            return value

        return get_scale

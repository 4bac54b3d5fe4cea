"""What a script does with tensors outside modules, seen as torch's functions called."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode, _pop_mode, _push_mode

from ampdoctor.live.gradients import norm_of
from ampdoctor.live.recorder import Draft, Recorder
from ampdoctor.live.scaled_values import ScaledValues

_LOW = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
"""Half the distance between 1 and the next number: a factor that differs from 1 by less changes nothing."""
_GRADIENT: Any = vars(torch._C.TensorBase)["grad"].__get__
_PRODUCTS = ("mul", "__mul__", "__rmul__", "multiply", "mul_", "__imul__")
_IN_PLACE = ("__isub__", "__iadd__", "__imul__", "__idiv__", "__setitem__", "__itruediv__")
_WRITE_NOTHING = ("requires_grad_", "detach_", "share_memory_")
_MEASURED_DECAYS = 16
"""Different lines whose first decay is measured; each waits for the device."""


class ScriptMode(TorchFunctionMode):
    """Passes on what the script calls, and notes what it does to parameters and gradients by hand."""

    def __init__(self, recorder: Recorder, listener: Any) -> None:
        super().__init__()
        self.recorder = recorder
        self.listener = listener
        self._decays: set[Any] = set()
        self.number_read: tuple[Any, Draft] = None, {}
        """The last number that came of a tensor with the loss scale in it, and its event."""
        self.muted = False
        """An optimizer is at work: what it calls is not the script's."""
        self.scales_read: set[float] = set()
        """Loss scales that the script has asked for: a product with one is a loss scaled by hand."""
        self.scaled = ScaledValues()
        self.scaled_by_hand: Callable[[Tensor], None] = lambda _: None

    @contextmanager
    def aside(self) -> Iterator[None]:
        """The mode is off: not on torch's stack, where it is the innermost; else it looks away."""
        if _get_current_function_mode() is not self:
            yield
            return
        _pop_mode()
        try:
            yield
        finally:
            _push_mode(self)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.recorder.book.stale = True
        if self.muted:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        target = args[0] if args else None
        after = self._before(target, name, args, kwargs) if _in_place(name) else None
        out = func(*args, **kwargs)
        if after is not None:
            after()
        elif func is torch.tensor:
            self._constant(args, out)
        elif func == _GRADIENT and self.recorder.book.knows(target) and out is not None:
            self._read_gradient(target, out)
        elif name in _PRODUCTS and self._multiplies_by_scale(args):
            self.scaled_by_hand(out)
        read = self.scaled.called(name, args, out, self.scales_read)
        if read is not None:
            self.number_read = out, self.recorder.emit("read_scaled", detail=read)
        self.listener.function(func, args, kwargs, out)
        return out

    def checks(self, original: Any) -> Any:
        """``math.isfinite`` and its like: a number that is only asked whether it is finite is not logged."""

        def check(value: Any) -> Any:
            number, draft = self.number_read
            if number is value and isinstance(value, float):
                draft["value"] = 1.0
            return original(value)

        return check

    def _multiplies_by_scale(self, args: Any) -> bool:
        return any(isinstance(a, float) and a != 1.0 and a in self.scales_read for a in args)

    def _read_gradient(self, parameter: Any, gradient: Tensor) -> None:
        kinds = self.recorder.book.counts([parameter])
        if kinds.get("scaled"):
            self.scaled.know([gradient], "gradient")

    def _before(self, target: Any, name: str, args: Any, kwargs: Any) -> Callable[[], None] | None:
        """What to do after an operation in place on ``target``, a tensor or a list; None for nothing."""
        targets = [target] if isinstance(target, Tensor) else target
        followed = targets if isinstance(targets, (list, tuple)) else ()
        changed = [t for t in followed if self.recorder.book.knows(t) and t.is_leaf]
        if changed:
            return self._parameters_change(changed, name) if self.recorder.last_backward else None
        return self._decays_by(target, name, args, kwargs) if isinstance(target, Tensor) else None

    def _parameters_change(self, parameters: list[Tensor], name: str) -> Callable[[], None]:
        """One event for changes that follow each other; then it holds whether one spoiled a parameter."""
        draft = self.recorder.drafts[-1] if self.recorder.drafts else None
        if draft is None or draft["kind"] != "parameter_changed":
            self.recorder.book.refresh()
            draft = self.recorder.emit(
                "parameter_changed", gradients=self.recorder.book.counts(), value=0.0,
                norm=norm_of(self.recorder.book.parameters()),
                dtype=str(parameters[0].dtype).removeprefix("torch."), detail=name,
            )  # fmt: skip
        event = draft
        sound = [p.detach().isfinite().all() for p in parameters]

        def after() -> None:
            for parameter, was in zip(parameters, sound, strict=True):
                spoiled = was & ~parameter.detach().isfinite().all()
                event["value"] = spoiled.float() + event["value"]

        return after

    def _decays_by(self, target: Tensor, name: str, args: Any, kwargs: Any) -> Callable[[], None] | None:
        half_gap = _LOW.get(target.dtype)
        if half_gap is None or target.requires_grad:
            return None
        factor = _kept_share(name, args, kwargs)
        if factor is None or not 0 < 1 - factor < half_gap:
            return None
        draft = self.recorder.emit(
            "decay", dtype=str(target.dtype).removeprefix("torch."), value=factor, detail=name
        )
        if draft["line"] in self._decays or len(self._decays) >= _MEASURED_DECAYS:
            return None
        self._decays.add(draft["line"])
        old = target.detach().clone()

        def after() -> None:
            nonzero = old != 0
            draft["unchanged"] = ((target.detach() == old) & nonzero).sum() / nonzero.sum().clamp(min=1)

        return after

    def _constant(self, args: Any, out: Tensor) -> None:
        value = args[0] if args else None
        if not isinstance(value, float) or value == 0 or out.dtype not in _LOW:
            return
        if bool(out == 0):
            self.recorder.emit("constant", value=value, dtype=str(out.dtype).removeprefix("torch."))


def _in_place(name: str) -> bool:
    writes = name.endswith("_") and not name.endswith("__") and name not in _WRITE_NOTHING
    return writes or name in _IN_PLACE


def _kept_share(name: str, args: Any, kwargs: Any) -> float | None:
    """The factor by which an op in place keeps the old value; None for an op that is no moving average."""
    if name in ("mul_", "__imul__") and len(args) > 1 and isinstance(args[1], float):
        return args[1]
    weight = kwargs.get("weight", args[2] if len(args) > 2 else None)
    if name == "lerp_" and isinstance(weight, float):
        return 1.0 - weight
    return None

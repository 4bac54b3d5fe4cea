"""The dispatch mode that sees every op of a pass, forward and backward, in its real dtype."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode

from ampdoctor.errors import OutOfMemoryInPass, ProbeError, is_out_of_memory
from ampdoctor.facts.site import Site
from ampdoctor.facts.trace import SiteRecord
from ampdoctor.probe.cuda.on_cpu import run_like_cuda
from ampdoctor.probe.passes.isolation import dense_gradients
from ampdoctor.probe.passes.precision import Precision
from ampdoctor.probe.watch.attention import INTERNAL, NAMES
from ampdoctor.probe.watch.conversions import line_converts
from ampdoctor.probe.watch.location import source_of, user_line
from ampdoctor.probe.watch.locator import Locator, Place
from ampdoctor.probe.watch.op_arguments import AnyOp, flat, largest_scalar, written
from ampdoctor.probe.watch.storage_map import StorageMap
from ampdoctor.probe.watch.tally import Tally
from ampdoctor.probe.watch.tracing import is_tracing

_NO_VALUES = frozenset(
    f"aten::{name}"
    for name in (
        "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided",
        "empty_quantized", "resize_", "set_", "detach", "detach_", "lift_fresh", "alias", "_unsafe_view",
        "_reshape_alias", "is_same_size",
    )
)  # fmt: skip
"""Ops whose output holds garbage (uninitialised memory) or the very values of an input."""


@dataclass(frozen=True)
class Op:
    """What is known of an op before it runs."""

    name: str
    """``aten::mm``"""
    makes_values: bool
    """False for views and for uninitialised memory: their output is not counted."""
    mutates: bool
    foreign: bool
    """Not one of torch's own: its inside cannot be seen."""


_CONTROL_FLOW = ("cond", "while_loop", "map_impl", "scan", "associative_scan", "invoke_subgraph")
"""Higher-order ops that only call the functions they are given."""


def describe(func: AnyOp) -> Op:
    """The facts of an op, from its schema."""
    if isinstance(func, HigherOrderOperator):
        computes = func.name() not in _CONTROL_FLOW
        return Op(f"higher_order::{func.name()}", computes, False, computes)
    schema = func._schema
    name = schema.name
    mutates = any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)
    is_view = not mutates and any(
        r.alias_info is not None and not r.alias_info.is_write for r in schema.returns
    )
    gives_tensors = mutates or any("Tensor" in str(r.type) for r in schema.returns)
    foreign = gives_tensors and func.namespace not in ("aten", "prims", "prim", "_c10d_functional", "c10d")
    return Op(NAMES.get(name, name), not is_view and name not in _NO_VALUES, mutates, foreign)


Unrounded = Mapping[int, Tensor]
"""id() of an op's output -> its FP32 value before it was rounded."""


class Observer(TorchDispatchMode):
    """Records the statistics of every floating-point tensor that an op makes, in a pass of this precision.

    FP32 tensors are counted by exponent in the reference only: in the candidate it would cost as much again
    and tell the same.
    """

    supports_higher_order_operators = True

    def __init__(self, locator: Locator, precision: Precision) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.locator = locator
        self.precision = precision
        self.tally = Tally()
        self.order = 0
        self.failed: tuple[BaseException, str, Place, float | None] | None = None
        """The last op that raised: the exception, its name, its place, its largest scalar argument."""
        self._ops_own: Exception | None = None
        """The last exception that an op raised itself; any other, in a look at an op, is a fault of ours."""
        self.opaque_ops: dict[str, None] = {}
        self.left_ops: dict[str, None] = {}
        """Ops in half precision that the emulation had to leave to the CPU's own kernel."""
        self.stored: tuple[Tensor, ...] = ()
        """What the op that runs stored inside in low precision, where that is emulated."""
        self.modules_seen: set[str] = set()
        """Modules inside which at least one op ran."""
        self._ops: dict[AnyOp, Op] = {}
        self._nth: dict[tuple[str, str, str], int] = {}
        self._rows: StorageMap[tuple[Identity, int]] = StorageMap()
        """The tally's row of the tensor last counted in a storage."""
        self._records: list[tuple[Site, int, int, Place, bool]] = []
        self._forward: tuple[int, dict[tuple[str, str, str], int], int] = (0, {}, 0)
        """What ``order``, ``_nth`` and the length of ``_records`` were when backward began."""
        self._gradients: dict[str, int] = {}
        """Parameter -> the tally's row of its gradient, as it was before autocast's cast widened it."""

    # -- what the pass tells it

    def begin(self, model: nn.Module, data: Any) -> None:
        """Before anything runs: the tensors that the step starts from."""

    def begin_backward(self) -> None:
        """The loss is there; whatever runs from now on belongs to backward."""
        self.locator.begin_backward()
        self._forward = (self.order, dict(self._nth), len(self._records))

    def rewind(self) -> None:
        """To the beginning of backward, which runs once more on the same graph."""
        self.order, nth, records = self._forward
        self._nth = dict(nth)
        del self._records[records:]
        self._gradients.clear()
        self.failed = None

    @property
    def backward_is_torchs_own(self) -> bool:
        """No line of the user's ran in backward, and no forward again."""
        places = (place for _, _, _, place, _ in self._records[self._forward[2] :])
        return not any(p.recomputed or p.backward_line is not None for p in places)

    def end(self, model: nn.Module, results: Iterable[Tensor]) -> None:
        """After all: the loss (or the outputs, in a forward-only pass) and the parameters with gradients."""
        for name, gradient in dense_gradients(model).items():
            known = self._rows.get(gradient)
            if known is not None:
                self._gradients.setdefault(name, known[1])

    # -- what no op made

    watches_functions = False
    """``returned`` is to be told of the calls of the user's autograd.Functions."""

    def returned(self, name: str, args: tuple[Any, ...], outputs: Any) -> None:
        """A user's autograd.Function was applied."""

    def function_site(self, name: str) -> tuple[Site, Place]:
        """The site of the first output of the user's Function that has just been applied, and its place."""
        place = Place(self.locator.phase, self.locator.modules.current, user_line())
        key = (place.phase, place.module, f"python::{name}")
        nth = self._nth[key] = self._nth.get(key, -1) + 1
        return Site(*key, nth), place

    # -- every op

    def __torch_dispatch__(
        self,
        func: AnyOp,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if is_tracing():
            return func(*args, **(kwargs or {}))
        if any(_has_own_dispatch(t) for t in types):
            return NotImplemented  # the subclass does it with ops on its inner tensors, and those come here
        if isinstance(func, HigherOrderOperator):
            args, kwargs = self._watched((args, kwargs or {}))
        try:
            return self.see(func, args, kwargs or {})
        finally:
            self.stored = ()

    def _watched(self, value: Any) -> Any:
        """The arguments, with functions among them (the branches of ``cond``) run under this observer."""
        if isinstance(value, (list, tuple)):
            return type(value)(self._watched(v) for v in value)
        if isinstance(value, dict):
            return {k: self._watched(v) for k, v in value.items()}
        if isinstance(value, Tensor) or not callable(value):
            return value

        def watched(*args: Any, **kwargs: Any) -> Any:
            with self:
                return value(*args, **kwargs)

        return watched

    def see(self, func: AnyOp, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the op returns, its place found."""
        if self.precision.widens_casts and kwargs.get("dtype") in (torch.float16, torch.bfloat16):
            kwargs = {**kwargs, "dtype": torch.float32}
        op = self._ops.get(func)
        if op is None:
            op = self._ops[func] = describe(func)
        place = self.locator.locate(op.name, self.order)
        self.order += 1
        if place.phase == "forward" or place.recomputed:
            self.modules_seen.add(place.module)
        if op.foreign:
            self.opaque_ops[op.name] = None
        try:
            return self.run(func, op, place, args, kwargs)
        except Exception as error:
            if error is not self._ops_own and is_out_of_memory(error):
                raise OutOfMemoryInPass(f"recording {op.name}", error) from error
            if error is not self._ops_own:
                raise ProbeError(
                    f"{op.name} was run but could not be recorded: {type(error).__name__}: {error}",
                    "this is a bug in ampdoctor; --debug shows the whole traceback",
                ) from error
            if self.failed is None or self.failed[0] is not error:
                self.failed = (error, op.name, place, largest_scalar(args, kwargs))
            raise

    def run(self, func: AnyOp, op: Op, place: Place, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the op returns, counted."""
        outputs, unrounded = self.call(func, args, kwargs)
        if op.makes_values:
            self.record(op, place, args, results(func, args, kwargs, outputs), unrounded)
        return outputs

    def call(self, func: AnyOp, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Unrounded]:
        """The op's outputs, and the FP32 value of each before it was rounded, where that was seen."""
        try:
            if not self.precision.emulates_cuda or isinstance(func, HigherOrderOperator):
                return func(*args, **kwargs), {}
            result = run_like_cuda(func, args, kwargs)
        except Exception as error:
            self._ops_own = error
            raise
        self.stored = result.stored
        if result.how == "left":
            self.left_ops[func._schema.name] = None
        made = results(func, args, kwargs, result.outputs)
        tensors = [t for t in flat(made) if isinstance(t, Tensor)]
        exact = zip(tensors, result.unrounded, strict=False)
        return result.outputs, {id(t): x for t, x in exact if x is not None}

    def record(
        self,
        op: Op,
        place: Place,
        args: tuple[Any, ...],
        outputs: Any,
        unrounded: Unrounded,
    ) -> list[Site]:
        """The sites of the op's outputs, their tensors counted."""
        nth: int | None = None
        sites = []
        for i, tensor in enumerate((outputs,) if isinstance(outputs, Tensor) else flat(outputs)):
            if not is_countable(tensor):
                continue
            if nth is None:
                key = (place.phase, place.module, op.name)
                nth = self._nth.get(key, 0)
                self._nth[key] = nth + 1
            site = Site(place.phase, place.module, op.name, nth, i)
            row = self._count(op, place, args, tensor, unrounded.get(id(tensor)))
            implicit = self.is_implicit_cast(op, place)
            self._records.append((site, self.order - 1, row, place, implicit))
            sites.append(site)
        return sites

    def is_implicit_cast(self, op: Op, place: Place) -> bool:
        """Autocast put this cast in, or it is the derivative of one that it did: the user's line converts
        nothing. The cast of a type promotion (half + float) is not autocast's; it shows in backward."""
        of_a_cast = place.phase == "forward" or place.recomputed or place.forward_op == _CAST
        return (
            op.name == _CAST
            and self.precision.autocasts
            and of_a_cast
            and not line_converts(source_of(place.line))
        )

    def _count(
        self, op: Op, place: Place, args: tuple[Any, ...], tensor: Tensor, unrounded: Tensor | None
    ) -> int:
        """The tally's row of an output; a wider copy of a tensor just counted is not counted again."""
        if op.name == _CAST and isinstance(args[0], Tensor):
            source = args[0]
            known = self._rows.get(source)
            if (
                known is not None
                and source.dtype in (torch.float16, torch.bfloat16)
                and tensor.dtype in (torch.float32, torch.float64)
            ):
                # Autocast's cast of a weight, differentiated: what it widens is the weight's gradient.
                parameter = self.locator.arrives_at()
                if parameter:
                    self._gradients[parameter] = known[1]
                if known[0] == _identity(source):
                    return self.tally.add_upcast(tensor, known[1])
        # What a loss scale would do to backward is read from its histograms, ties and all.
        row = self.tally.add(
            tensor.resolve_conj(),
            unrounded,
            ties=place.phase == "backward",
            exponents=self.precision.is_reference or tensor.itemsize <= 2,
            exact=not self.precision.is_reference,
        )
        self._rows.put(tensor, (_identity(tensor), row))
        return row

    def records(self) -> tuple[SiteRecord, ...]:
        """Every tensor seen, read back from the device now."""
        stats = self.tally.read()
        gradient_of = {row: name for name, row in self._gradients.items()}
        return tuple(
            SiteRecord(
                site, order, stats[row], source_of(place.line), place.forward_op,
                place.parameter or gradient_of.get(row, ""), implicit, place.recomputed,
            )
            for site, order, row, place, implicit in self._records
        )  # fmt: skip


def results(func: AnyOp, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Any) -> Any:
    """What an op made: its outputs, those that are no values of the model's left out; where it returns
    nothing, what it wrote to (``_foreach_mul_``)."""
    if outputs is None:
        return written(func, args, kwargs)
    name = "" if isinstance(func, HigherOrderOperator) else func._schema.name
    left_out = _INTERNAL.get(name, ())
    return [None if i in left_out else o for i, o in enumerate(outputs)] if left_out else outputs


_INTERNAL = {**INTERNAL, "aten::_ctc_loss": (1,), "aten::_cudnn_ctc_loss": (1,)}
"""Op -> outputs that only its backward reads. Of a CTC loss's table only a part is ever written where a
target is shorter than the longest, and the rest of it is full of infinities that mean "not to be reached"."""


def is_countable(tensor: Any) -> bool:
    """A dense floating-point or complex tensor, whose elements are there to be counted."""
    return (
        isinstance(tensor, Tensor)
        and (tensor.is_floating_point() or tensor.is_complex())
        and tensor.layout == torch.strided
        and tensor.device.type != "meta"
        and not tensor.is_nested
        and not tensor._is_zerotensor()  # forward-mode AD's zeros without memory
        and not _has_own_dispatch(type(tensor))
    )


def _has_own_dispatch(cls: type) -> bool:
    """A tensor subclass that wraps other tensors: they hold the elements."""
    return getattr(cls, "__torch_dispatch__", _DISABLED) is not _DISABLED


_DISABLED = torch._C._disabled_torch_dispatch_impl


_CAST = "aten::_to_copy"

Identity = tuple[int, torch.Size, tuple[int, ...], int | torch.SymInt, torch.dtype]


def _identity(tensor: Tensor) -> Identity:
    """Equal for two looks at a storage with no write between them. (Inference tensors count no writes.)"""
    version = -1 if tensor.is_inference() else tensor._version
    return version, tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype

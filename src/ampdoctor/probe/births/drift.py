"""Where the values of a forward part from the reference's, though all are finite.

Both passes are run once more, forward only, and a sample of every tensor is kept. From the last tensor that
is far off the error is followed back to the op at which it appears: its output is off, its inputs agree.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ampdoctor.facts.drift import Drift
from ampdoctor.facts.site import Site
from ampdoctor.facts.words import DriftKind, Phase
from ampdoctor.load.workload import Workload
from ampdoctor.probe.passes.forward_only import forward_only
from ampdoctor.probe.passes.one_pass import run_pass
from ampdoctor.probe.passes.precision import Precision, reference
from ampdoctor.probe.watch.location import source_of
from ampdoctor.probe.watch.locator import Locator, Place
from ampdoctor.probe.watch.nonfinite import readable
from ampdoctor.probe.watch.observer import Observer, Op, is_countable, results
from ampdoctor.probe.watch.op_arguments import AnyOp, flat, written
from ampdoctor.probe.watch.storage_map import StorageMap

_SAMPLE = 4096
"""Elements kept of a tensor: enough for an error of a few percent, 16 KiB a tensor."""
_SPREAD = 2654435761
"""Their distance, modulo the tensor's size: a prime near 2^32 divided by the golden ratio (Knuth's), so that
they lie evenly and fall in with no stride of the tensor's."""
_FAR = 0.05
"""A tensor is off from here on: FP16 rounds to 5e-4, BF16 to 4e-3, and a deep model adds up some of those."""
_JUMP = 8.0
"""The error appears, rather than accumulates, where it grows by this factor in one op."""
_JUMP_BACKWARD = 64.0
"""The same in backward, where one op of a healthy model may cost more: the backward of a batch norm over a
handful of values is a difference, and a ReLU that rounding turns over costs its whole gradient."""

_JUMP_CHOICE = 4.0
"""The same of an op of ``_CHOICES`` in backward, which is no fault: what rounding turns over there needs to
explain the error, not to stand out."""

_CAST = "aten::_to_copy"
_NORMS = frozenset(
    f"aten::{n}" for n in ("native_layer_norm", "native_group_norm", "native_batch_norm", "cudnn_batch_norm")
)
"""Ops whose further outputs are statistics: the mean of what is normalised already is zero, but for
rounding."""
_PERIODIC = frozenset(
    f"aten::{n}" for n in ("sin", "cos", "tan", "remainder", "fmod", "frac", "floor", "round")
)
_DIFFERENCES = frozenset(f"aten::{n}" for n in ("add", "add_", "sub", "sub_", "rsub", "addcmul", "baddbmm"))
_SUMS = frozenset(f"aten::{n}" for n in ("sum", "mean", "cumsum", "var", "var_mean", "std", "prod", "norm"))
_ADDITIONS = ("aten::add", "aten::add_", "aten::sub", "aten::sub_")
_MANY = 32
"""Additions on one line from which on their rounding is spoken of as a sum's. FP16 keeps 2,048 ones."""
_TERMS_AGREE = 0.01
"""The terms of such a sum are right to this much: they are not made from the sum, as those of a residual
stream are."""
_CHOICES = frozenset(
    f"aten::{n}"
    for n in (
        "index", "gather", "embedding", "where", "scatter", "scatter_add", "index_select", "index_put",
        "index_put_", "masked_fill", "topk", "sort", "max_pool2d_with_indices", "bernoulli", "bernoulli_",
        "native_dropout", "rand_like", "randn_like", "normal_", "uniform_", "exponential_", "multinomial",
        "gt", "lt", "ge", "le", "eq", "sign", "max", "min", "masked_select", "threshold_backward",
        "hardtanh_backward", "leaky_relu_backward", "hardswish_backward", "hardsigmoid_backward",
        "max_pool2d_with_indices_backward",
    )
)  # fmt: skip
"""Ops that choose, or draw: one rounding turns a choice over, and nothing is computed wrongly for it."""


def find_drift(workload: Workload, index: int, precision: Precision, seed: int) -> Drift | None:
    """Where batch ``index``, run in ``precision``, parts from FP32; None where no op stands out."""
    return _parting(forward_only(workload), index, precision, seed, "forward") or _parting(
        workload, index, precision, seed, "backward"
    )


def _parting(workload: Workload, index: int, precision: Precision, seed: int, phase: Phase) -> Drift | None:
    batch = workload.batches[index]
    passes = [run_pass(workload, batch, p, seed, _Sampled) for p in (reference(precision.device), precision)]
    exact, ours = (run.observer for run in passes)
    assert isinstance(exact, _Sampled) and isinstance(ours, _Sampled)
    if any(run.raised is not None or run.interrupted for run in passes):
        return None
    exact.read()
    ours.read()
    return ours.parting_from(exact, index, phase)


@dataclass(frozen=True)
class _Made:
    """An output as it was made."""

    place: Place
    sample: Tensor
    """Float32, where the tensor lay; on the host once ``read`` was called."""
    inputs: tuple[Site, ...]
    largest_input: Tensor | None
    """The largest magnitude, [], beside the sample."""
    stale: tuple[str, Place] | None
    """A weight among the inputs that was changed after the cast in use, and where."""


@dataclass(frozen=True)
class _WeightCast:
    weight: Tensor
    name: str
    order: int


class _Sampled(Observer):
    """Keeps a sample of each tensor of the forward, and what it was made of."""

    def __init__(self, locator: Locator, precision: Precision) -> None:
        super().__init__(locator, precision)
        self.made: dict[Site, _Made] = {}
        self._site: StorageMap[Site] = StorageMap()
        self._written: StorageMap[tuple[int, Place]] = StorageMap()
        self._casts: StorageMap[_WeightCast] = StorageMap()
        self._weights: StorageMap[str] = StorageMap()

    def begin(self, model: nn.Module, data: Any) -> None:
        """The weights, by name."""
        super().begin(model, data)
        for name, parameter in model.named_parameters():
            if is_countable(parameter):
                self._weights.put(parameter, name)

    def run(self, func: AnyOp, op: Op, place: Place, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the op returns, sampled."""
        order = self.order - 1
        given = [t for t in flat((args, kwargs)) if is_countable(t)]
        inputs = tuple(dict.fromkeys(s for t in given if (s := self._site.get(t)) is not None))
        largest = _largest(given) if op.makes_values else None
        stale = next((found for t in given if (found := self._stale(t)) is not None), None)
        outputs, unrounded = self.call(func, args, kwargs)
        for tensor in written(func, args, kwargs):
            if is_countable(tensor):
                self._written.put(tensor, (order, place))
        if not op.makes_values:
            return outputs
        scale = self.precision.loss_scale if place.phase == "backward" else 1.0
        made = results(func, args, kwargs, outputs)
        sites = self.record(op, place, args, made, unrounded)
        for site, tensor in zip(sites, (t for t in flat(made) if is_countable(t)), strict=True):
            if op.name == _CAST:
                if given:  # else of whole numbers, which are exact
                    self._follow_cast(given[0], tensor, order)
                continue  # has no twin: what it holds is what was cast
            self.made[site] = _Made(place, _sample(tensor) / scale, inputs, largest, stale)
            self._site.put(tensor, site)
        return outputs

    def _follow_cast(self, source: Tensor, cast: Tensor, order: int) -> None:
        site, name = self._site.get(source), self._weights.get(source)
        if site is not None:
            self._site.put(cast, site)
        if name is not None:
            self._casts.put(cast, _WeightCast(source.detach(), name, order))

    def _stale(self, tensor: Tensor) -> tuple[str, Place] | None:
        cast = self._casts.get(tensor)
        if cast is None:
            return None
        last = self._written.get(cast.weight)
        return (cast.name, last[1]) if last is not None and last[0] > cast.order else None

    def read(self) -> None:
        """Brings the samples to the host: the pass itself waits for no device."""
        self.made = {
            site: replace(
                made,
                sample=made.sample.cpu(),
                largest_input=None if made.largest_input is None else made.largest_input.cpu(),
            )
            for site, made in self.made.items()
        }

    # -- against the reference

    def parting_from(self, exact: _Sampled, batch: int, phase: Phase) -> Drift | None:
        """The op at which the error appears that the last of the phase's tensors far off carries."""
        errors = {
            site: error
            for site, made in self.made.items()
            if site in exact.made
            and not (site.output and site.op in _NORMS)
            and (error := _error(made.sample, exact.made[site].sample)) is not None
        }
        ends = (s for s in reversed(self.made) if s.phase == phase and errors.get(s, 0.0) > _FAR)
        # The sum for a bias in front of a normalisation is zero but for rounding, and far off by itself.
        end = at = next((s for s in ends if phase == "forward" or s.op not in _SUMS), None)
        magnified = None
        while at is not None and errors[at] > _FAR:  # below that it accumulates: no single op is to blame
            made, error = self.made[at], errors[at]
            worst = max(self._compared(made, errors), key=lambda s: errors[s], default=None)
            before = 0.0 if worst is None else errors[worst]
            if worst is None or before * _jump(at) <= error or (made.stale is not None and before <= _FAR):
                found = self._drift(at, batch, error, None if worst is None else before)
                if before <= _FAR:
                    return found
                magnified = magnified or found  # its inputs are off already: it begins further up
            at = worst
        return magnified or (self._running_sum(end, batch, errors) if end is not None else None)

    def _running_sum(self, end: Site, batch: int, errors: dict[Site, float]) -> Drift | None:
        """The last of many additions on one line that each add little of the error, of terms that agree."""
        at: Site | None = end
        run: list[Site] = []
        while at is not None:
            inputs = sorted(self._compared(self.made[at], errors), key=lambda s: errors[s])
            adds = at.op in _ADDITIONS and all(errors[s] <= _TERMS_AGREE for s in inputs[:-1])
            if adds and (not run or self._line(at) == self._line(run[0])):
                run.append(at)
            elif len(run) >= _MANY:
                break
            else:
                run = [at] if adds else []
            at = inputs[-1] if inputs else None
        if len(run) < _MANY or errors[run[0]] <= _FAR or errors[run[-1]] > _TERMS_AGREE:
            return None
        return replace(self._drift(run[0], batch, errors[run[0]], errors[run[-1]]), kind="running-sum")

    def _line(self, site: Site) -> object:
        return source_of(self.made[site].place.line)

    def _compared(self, made: _Made, errors: dict[Site, float]) -> list[Site]:
        """Its inputs; for one that could not be compared, what that was made of."""
        found, pending, seen = [], list(made.inputs), set(made.inputs)
        while pending:
            site = pending.pop()
            if site in errors:
                found.append(site)
            elif site in self.made:
                further = [s for s in self.made[site].inputs if s not in seen]
                pending += further
                seen.update(further)
        return found

    def _drift(self, site: Site, batch: int, error: float, input_error: float | None) -> Drift:
        made = self.made[site]
        name, changed = made.stale if made.stale is not None else ("", None)
        return Drift(
            batch=batch,
            site=site,
            source=source_of(made.place.backward_line or made.place.line),
            kind=_kind(site, made),
            error=error,
            input_error=input_error,
            largest_input=None if made.largest_input is None else float(made.largest_input),
            changed_at=source_of(changed.line) if changed is not None else None,
            weight=name,
            scalar=made.sample.numel() == 1,
        )


def _jump(at: Site) -> float:
    if at.phase == "forward":
        return _JUMP
    return _JUMP_CHOICE if at.op in _CHOICES else _JUMP_BACKWARD


def _kind(site: Site, made: _Made) -> DriftKind:
    if made.stale is not None:
        return "stale-cast"
    if site.op in _CHOICES:
        return "choice"
    if site.op in _PERIODIC:
        return "large-argument"
    if site.op in _DIFFERENCES:
        return "difference"
    return "long-sum" if site.op in _SUMS else "other"


def _sample(tensor: Tensor) -> Tensor:
    values = tensor.detach().resolve_conj().resolve_neg()
    if values.is_complex():
        values = torch.view_as_real(values)
    if values.numel() <= _SAMPLE:
        return values.reshape(-1).to(torch.float32, copy=True)
    # Not every n-th: those of a padded image may all lie in its margin.
    at = torch.arange(_SAMPLE, device=values.device) * _SPREAD % values.numel()
    return _elements(values, at).to(torch.float32)


def _elements(x: Tensor, at: Tensor) -> Tensor:
    """The elements with these numbers, in the order of the shape, whatever order they lie in."""
    place = torch.zeros_like(at)
    for size, stride in zip(reversed(x.shape), reversed(x.stride()), strict=True):
        place += at % size * stride
        at = at.div(size, rounding_mode="floor")
    span = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    found: Tensor = x.as_strided((span,), (1,)).index_select(0, place)
    return found


def _error(ours: Tensor, theirs: Tensor) -> float | None:
    """None where the tensors do not pair, are not finite, or only the reference is all zero."""
    if ours.shape != theirs.shape:
        return None
    size = float(torch.linalg.vector_norm(theirs.double()))
    error = float(torch.linalg.vector_norm(ours.double() - theirs.double()))
    if size == error == 0:
        return 0.0
    return error / size if size > 0 and size < float("inf") and error < float("inf") else None


def _largest(tensors: list[Tensor]) -> Tensor | None:
    tensors = [t.detach() for t in tensors if t.numel() and not t.is_complex()]
    if not tensors:
        return None
    # A number of the host's may go into an op of the device's, and stays where it is.
    home = max(tensors, key=lambda t: (t.dim(), t.numel())).device
    ends = [torch.aminmax(readable(t)) for t in tensors if t.device == home]
    return torch.stack([torch.maximum(high, -low).double() for low, high in ends]).max()

"""Runs one op on a CPU the way a GPU does in half precision: float32 inside, one rounding per result.

The CPU's own half kernels give nearly the same numbers, but matrix products are about 180 times slower, and
none shows the value before it was rounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload

from ampdoctor.probe.cuda.device_tensors import has_memory, is_placed, place, read_in_float32
from ampdoctor.probe.cuda.half_ffts import TRANSFORMS, transform_steps
from ampdoctor.probe.cuda.half_to_float import softmax_in_float32
from ampdoctor.probe.cuda.op_kinds import Arithmetic, OpKind, classify
from ampdoctor.probe.cuda.refusal import EmulatedRefusal
from ampdoctor.probe.cuda.stored_in_half import STEPS
from ampdoctor.probe.cuda.stored_value import Stored

_HALF, _BRAIN, _SINGLE = torch.float16, torch.bfloat16, torch.float32
_LOW = (_HALF, _BRAIN)
_NO_KERNEL = "not implemented for"
_NO_COMPLEX_HALF = frozenset(f"aten::{name}" for name in ("mm", "bmm", "addmm", "baddbmm", "convolution"))
"""Products, which have no kernel for complex32 on CUDA either (AT_DISPATCH in ATen/native/cuda/Blas.cpp);
for half and bfloat16 the CPU has one."""


class Emulated(NamedTuple):
    """What an op returned, and its results before they were rounded."""

    outputs: Any
    """Just what the op itself would return."""
    unrounded: tuple[Tensor | None, ...]
    """One for each tensor in ``outputs``, in order (for an in-place op without a result: for each tensor it
    overwrote): the value before rounding, None where nothing was rounded."""
    how: str
    """``native``: the CPU's own kernel; ``rounded``: float32 inside, rounded once; ``no half kernel``: the
    same, because the CPU has none; ``left``: only the CPU's own kernel could run what should be rounded."""
    stored: tuple[Tensor, ...] = ()
    """What CUDA stores in half inside the op, in order (in float32 here)."""


_kinds: dict[OpOverload, OpKind] = {}


def run_like_cuda(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Emulated:
    """The outputs of ``func`` as CUDA would round them. Call it below autograd and autocast."""
    kind = _kinds.get(func)
    if kind is None:
        kind = _kinds[func] = classify(func)
    operands = _tensors(args, kwargs)
    emulated = _run(func, kind, operands, args, kwargs)
    if any(map(is_placed, operands)):
        outputs = emulated.outputs
        place(outputs if isinstance(outputs, (tuple, list)) else (outputs,))
    return emulated


def _run(
    func: OpOverload, kind: OpKind, operands: list[Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Emulated:
    if kind.arithmetic is Arithmetic.CASTS:
        return _cast(func, kind, args, kwargs)
    if func in TRANSFORMS and operands[0].dtype in (_HALF, torch.complex32):
        return _transformed(func, *args)
    softmax = softmax_in_float32(func, args)
    if softmax is not None:
        backward = len(args) == 4
        return Emulated(
            softmax.to(_HALF) if backward else softmax, (softmax if backward else None,), "rounded"
        )
    if kind.arithmetic is Arithmetic.FAILS:
        return _native(func, args, kwargs)
    if kind.arithmetic is Arithmetic.MOVES or (
        kind.only_if is not None and not _argument(kind, kind.only_if, args, kwargs)
    ):
        return _moved(func, kind, args, kwargs)
    rounding = _rounding(kind, operands, args, kwargs)
    if rounding is None:
        return _moved(func, kind, args, kwargs)
    if not all(map(has_memory, operands)) and not _is_sparse_product(kind, operands):
        return _native(func, args, kwargs, how="left")
    if kind.arithmetic is Arithmetic.REFUSED:
        raise EmulatedRefusal(f"CUDA has no {rounding.dtype} kernel for {kind.name}")
    emulated = _computed(func, kind, rounding, args, kwargs, "rounded")
    return emulated if emulated is not None else _native(func, args, kwargs, how="left")


def _native(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], how: str = "native"
) -> Emulated:
    outputs = func(*args, **kwargs)
    return Emulated(outputs, _nothing_rounded(outputs), how)


def _moved(func: OpOverload, kind: OpKind, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Emulated:
    """The CPU's own kernel, or float32 where it has none for half."""
    try:
        return _native(func, args, kwargs)
    except RuntimeError as error:
        if _NO_KERNEL not in str(error):
            raise
        dtypes = [_HALF if t.dtype is torch.complex32 else t.dtype for t in _tensors(args, kwargs)]
        low = next((dtype for dtype in dtypes if dtype in _LOW), None)
        if low is None or kind.name in _NO_COMPLEX_HALF:
            raise
        emulated = _computed(func, kind, _Rounding(low, False), args, kwargs, "no half kernel")
        if emulated is None:
            raise
        return emulated


def _transformed(func: OpOverload, signal: Tensor, *how: Any) -> Emulated:
    store = Stored(_HALF)
    wide = transform_steps(store, func, signal.to(torch.complex64 if signal.is_complex() else _SINGLE), *how)
    if wide.is_complex():
        return Emulated(wide.to(torch.complex32), (None,), "rounded", tuple(store.values))
    return Emulated(wide.to(_HALF), (wide,), "rounded", tuple(store.values))


def _cast(func: OpOverload, kind: OpKind, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Emulated:
    emulated = _moved(func, kind, args, kwargs)
    result = emulated.outputs
    if not isinstance(result, Tensor) or result.dtype not in _LOW:
        return emulated
    source = args[0] if len(args) < 2 or not isinstance(args[1], Tensor) else args[1]
    if not isinstance(source, Tensor) or source.dtype in _LOW or source.is_complex():
        return emulated
    if not has_memory(source) or not has_memory(result):
        return emulated
    exact = source if source.is_floating_point() else source.to(_SINGLE)
    return Emulated(result, (exact if exact.shape == result.shape else exact.expand_as(result),), "rounded")


class _Rounding(NamedTuple):
    """How one call rounds."""

    dtype: torch.dtype
    scalars_first: bool
    """Zero-dimensional operands of another dtype are rounded before the op: in type promotion the half matrix
    decides, and a GPU kernel reads every operand on the device in the common dtype."""


def _rounding(
    kind: OpKind, operands: list[Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> _Rounding | None:
    """How this call rounds; None where it does not, or where the CPU must judge a mixture of dtypes."""
    matrix = scalar = None
    wide_matrix = wide_scalar = False
    for t in operands:
        dtype = t.dtype
        if dtype is _HALF or dtype is _BRAIN:
            if t.ndim > 0:
                wide_matrix = wide_matrix or (matrix is not None and matrix is not dtype)
                matrix = dtype
            else:
                wide_scalar = wide_scalar or (scalar is not None and scalar is not dtype)
                scalar = dtype
        elif dtype.is_floating_point:
            if t.ndim > 0:
                wide_matrix = True
            else:
                wide_scalar = True
        elif dtype.is_complex:
            return None
    low = matrix or scalar
    if low is None:
        return None
    if kind.mixed is not None:
        return _Rounding(low, False)
    if not kind.promotes:
        same = not wide_matrix and not wide_scalar and (scalar is None or scalar is low)
        return _Rounding(low, False) if same else None
    promoted_wide = wide_matrix or (matrix is None and wide_scalar)
    if kind.writes:
        targets = _tensors([_argument(kind, name, args, kwargs) for name in kind.writes], {})
        if any(t.dtype not in _LOW for t in targets):
            return None
        return _Rounding(targets[0].dtype, not promoted_wide) if targets else None
    return None if promoted_wide else _Rounding(low, True)


def _computed(
    func: OpOverload,
    kind: OpKind,
    rounding: _Rounding,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    how: str,
) -> Emulated | None:
    """The op in float32, each result rounded once; None where float32 fails as well."""
    low = rounding.dtype
    wide_args = [_widened(a, rounding) for a in args]
    if rounding.scalars_first:
        for i in read_in_float32(kind.name):
            if isinstance(scalar := args[i], Tensor) and scalar.ndim == 0 and not is_placed(scalar):
                wide_args[i] = scalar.to(_SINGLE)
    wide_kwargs = {
        n: _room_for(a) if n in kind.fresh_outputs else _widened(a, rounding) for n, a in kwargs.items()
    }
    keep = False
    if kind.dtype_argument is not None:
        wanted = _argument(kind, kind.dtype_argument, args, kwargs)
        if wanted in _LOW:
            low = wanted
            _replace(kind, kind.dtype_argument, wide_args, wide_kwargs, _SINGLE)
        elif wanted is not None:
            keep = True
    store = Stored(low)
    in_place = kind.writes == {"self"} and kind.name.endswith("_")
    steps = STEPS.get(kind.name[:-1] if in_place else kind.name) if in_place or not kind.writes else None
    try:
        outputs = steps(store, *wide_args, **wide_kwargs) if steps else func(*wide_args, **wide_kwargs)
        if steps and in_place:
            wide_args[0].copy_(outputs)
    except Exception:  # whatever is wrong, the CPU's own kernel says it in the user's dtype
        return None
    written = {
        name: _written_back(
            _argument(kind, name, args, kwargs), _argument(kind, name, wide_args, wide_kwargs)
        )
        for name in kind.writes
    }
    if outputs is None:
        return Emulated(None, tuple(t for exact in written.values() for t in exact), how)
    if isinstance(outputs, Tensor):
        result, exact = _result(kind, 0, outputs, low, keep, args, kwargs, written)
        return Emulated(result, (exact,), how, tuple(store.values))
    if not isinstance(outputs, (tuple, list)):
        return Emulated(outputs, (), how)
    results: list[Any] = []
    unrounded: list[Tensor | None] = []
    for i, output in enumerate(outputs):
        result, exact = _result(kind, i, output, low, keep, args, kwargs, written)
        results.append(result)
        if isinstance(result, Tensor):
            unrounded.append(exact)
    return Emulated(type(outputs)(results), tuple(unrounded), how)


def _result(
    kind: OpKind,
    i: int,
    output: Any,
    low: torch.dtype,
    keep: bool,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    written: Mapping[str, tuple[Tensor | None, ...]],
) -> tuple[Any, Tensor | None]:
    """Output ``i`` as the user gets it, and the value before rounding."""
    if i < len(kind.returned) and (name := kind.returned[i]) is not None:
        exact = written[name]
        return _argument(kind, name, args, kwargs), exact[0] if exact else None
    if not isinstance(output, Tensor) or keep:
        return output, None
    if output.dtype is torch.complex64 and low is _HALF:
        return output.to(torch.complex32), None
    if output.dtype is not _SINGLE:
        return output, None
    dtype: torch.dtype | None = low
    if kind.mixed is not None:
        dtype = None
        name = kind.mixed[i]
        if name is not None:
            like = _argument(kind, name, args, kwargs)
            like = like if like is not None else _argument(kind, kind.mixed[0] or "", args, kwargs)
            dtype = like.dtype
    if dtype not in _LOW:
        return output, None
    return output.to(dtype), output


def _written_back(original: Any, wide: Any) -> tuple[Tensor | None, ...]:
    """Rounds what the op wrote into the user's tensors; the values before that."""
    if isinstance(original, Tensor):
        if wide is original:
            return (None,)
        if original.shape != wide.shape:
            original.resize_(wide.shape)
        original.copy_(wide)
        return (wide,)
    if isinstance(original, (list, tuple)):
        return tuple(_written_back(o, w)[0] for o, w in zip(original, wide, strict=True) if o is not None)
    return ()


def _widened(value: Any, rounding: _Rounding) -> Any:
    """An argument with its half tensors in float32, holding the same numbers."""
    if isinstance(value, Tensor):
        if value.dtype is rounding.dtype:
            return value.to(_SINGLE)
        if value.dtype is torch.complex32:
            return value.to(torch.complex64)
        if value.ndim == 0 and rounding.scalars_first and value.is_floating_point():
            return value.to(rounding.dtype).to(_SINGLE)
        return value.to(_SINGLE) if value.dtype in _LOW else value
    if isinstance(value, (list, tuple)):
        return [_widened(v, rounding) for v in value]
    return value


def _room_for(value: Any) -> Any:
    """Float32 tensors in the place of half ``out=`` arguments."""
    if isinstance(value, Tensor):
        return torch.empty_like(value, dtype=_SINGLE) if value.dtype in _LOW else value
    return [_room_for(v) for v in value] if isinstance(value, (list, tuple)) else value


def _tensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The tensors among the arguments, those in lists too."""
    found: list[Tensor] = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(v for v in value if isinstance(v, Tensor))
    return found


def _is_sparse_product(kind: OpKind, operands: list[Tensor]) -> bool:
    """cuSPARSE's products compute in float32 (ATen/native/sparse/cuda/SparseBlasImpl.cpp); the CPU's have no
    half kernel for compressed rows."""
    return kind.name in _SPARSE_PRODUCTS and all(
        type(t) is Tensor and t.is_cpu and (t.layout in _SPARSE or has_memory(t)) for t in operands
    )


_SPARSE_PRODUCTS = frozenset(f"aten::{name}" for name in ("mm", "mv", "addmm", "addmv", "_sparse_mm"))
_SPARSE = (torch.sparse_csr, torch.sparse_csc, torch.sparse_coo)


def _argument(kind: OpKind, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    position = kind.positions.get(name)
    if position is not None and position < len(args):
        return args[position]
    return kwargs.get(name)


def _replace(kind: OpKind, name: str, args: list[Any], kwargs: dict[str, Any], value: Any) -> None:
    position = kind.positions[name]
    if position < len(args):
        args[position] = value
    else:
        kwargs[name] = value


def _nothing_rounded(outputs: Any) -> tuple[None, ...]:
    if isinstance(outputs, Tensor):
        return (None,)
    if isinstance(outputs, (tuple, list)):
        return (None,) * sum(isinstance(o, Tensor) for o in outputs)
    return ()

"""How a GPU computes each op in half precision: what rounds, what only moves values, what is refused.

The facts are CUDA's: kernels read the half operands, compute in ``opmath_t`` or ``acc_type`` (float32 for
float16 and bfloat16; ATen/OpMathType.h, ATen/AccumulateType.h) and round each result once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

import torch
from torch._ops import OpOverload


class Arithmetic(Enum):
    """What an op does to half-precision numbers."""

    MOVES = auto()
    """Copies, selects, compares or creates values: nothing is rounded, the CPU's own kernel is as good."""
    CASTS = auto()
    """Converts its input to another dtype: the value before rounding is the input."""
    COMPUTES = auto()
    """Computes in float32 and rounds each result once."""
    FAILS = auto()
    """Neither CUDA nor the CPU has a half kernel: the CPU's own error is the right answer."""
    REFUSED = auto()
    """The CPU has a half kernel and CUDA has none."""


@dataclass(frozen=True)
class OpKind:
    """One op overload, classified once."""

    name: str
    """``aten::mm``"""
    arithmetic: Arithmetic
    promotes: bool = False
    """Follows PyTorch's type promotion, so operands of different dtypes may meet."""
    mixed: tuple[str | None, ...] | None = None
    """For ops that take float32 statistics or weights next to half inputs: for each output the argument
    whose dtype it has, None for a float32 output. None for every other op."""
    writes: frozenset[str] = frozenset()
    """Arguments the op overwrites (in place or ``out=``)."""
    fresh_outputs: frozenset[str] = frozenset()
    """The ``out=`` arguments among them: their old values do not matter."""
    returned: tuple[str | None, ...] = ()
    """For each output the argument it is; None for a new tensor."""
    dtype_argument: str | None = None
    """The argument that names the dtype of the result."""
    only_if: str | None = None
    """A flag: the op computes only where it is True, and moves values otherwise."""
    positions: dict[str, int] = field(default_factory=dict, hash=False, compare=False)
    """Where in ``args`` an argument lies."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_MOVES = _words(
    """
    abs adaptive_max_pool2d adaptive_max_pool3d all allclose amax amin aminmax _aminmax
    _amp_foreach_non_finite_check_and_unscale _amp_update_scale any argmax argmin argsort
    as_strided_scatter _assert_async _assert_tensor_metadata bincount bitwise_and bitwise_not bitwise_or
    bitwise_xor block_diag bucketize cat ceil channel_shuffle _chunk_cat clone complex constant_pad_nd
    contiguous copysign count_nonzero cummax _cummax_helper cummin _cummin_helper diag_embed
    diagonal_backward diagonal_scatter embedding empty empty_like empty_strided eq equal fill flip floor
    fmax fmin _foreach_abs _foreach_ceil _foreach_clone _foreach_floor _foreach_max _foreach_maximum
    _foreach_minimum _foreach_neg _foreach_round _foreach_sign _foreach_trunc _foreach_zero frexp full
    full_like _functional_assert_async _fused_sdp_choice gather ge gt _has_same_storage_numel heaviside
    index index_copy index_fill index_select _is_all_true _is_any_true is_coalesced is_pinned is_same_size
    is_set_to isfinite isin isinf isnan isneginf isposinf kthvalue _lazy_clone le lift lift_fresh
    lift_fresh_copy _local_scalar_dense logical_and logical_not logical_or logical_xor lt masked_fill
    masked_scatter masked_select max max_pool2d_with_indices max_pool3d_with_indices max_unpool2d
    max_unpool3d maximum median min minimum mode nan_to_num nanmedian narrow_copy ne neg new_empty
    new_empty_strided new_full new_ones new_zeros nextafter nonzero nonzero_static ones ones_like
    _pack_padded_sequence _pad_packed_sequence _pin_memory pixel_shuffle pixel_unshuffle positive
    reflection_pad1d reflection_pad2d reflection_pad3d relu repeat repeat_interleave replication_pad1d
    replication_pad2d replication_pad3d _reshape_alias _reshape_copy resize resize_as _resize_output
    _resize_output_ roll rot90 round scalar_tensor scatter searchsorted select_backward select_scatter set
    sgn sign signbit slice_backward slice_scatter sort _stack stack take threshold_backward _to_dense
    _to_sparse topk tril triu trunc unfold_copy _unique _unique2 unique_consecutive unique_dim
    _unsafe_index _unsafe_masked_index unsafe_split unsafe_split_with_sizes _unsafe_view
    upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d
    _upsample_nearest_exact2d _upsample_nearest_exact3d where zero zeros zeros_like
    """
)
"""By base name: each value they make was among their inputs (up to sign), is exact, or is no half number."""

_VIEWS = _words(
    """
    alias as_strided detach diagonal expand permute select slice split split_with_sizes squeeze t
    transpose unbind unfold unsqueeze view
    """
)
"""Their copying twins (``view_copy``) move values too."""

_NEITHER = _words(
    """
    _cdist_backward _cdist_forward _cholesky_solve_helper _ctc_loss _ctc_loss_backward
    _linalg_check_errors _linalg_det _linalg_eigh _linalg_eigvals _linalg_slogdet _linalg_solve_ex
    _linalg_svd _pdist_backward _pdist_forward cholesky cholesky_inverse cholesky_solve geqrf
    linalg_cholesky_ex linalg_eig linalg_householder_product linalg_inv_ex linalg_ldl_factor_ex
    linalg_ldl_solve linalg_lstsq linalg_lu linalg_lu_factor_ex linalg_lu_solve linalg_qr
    linalg_solve_triangular lu_unpack ormqr polar special_airy_ai special_bessel_j0 special_bessel_j1
    special_bessel_y0 special_bessel_y1 special_chebyshev_polynomial_t special_chebyshev_polynomial_u
    special_chebyshev_polynomial_v special_chebyshev_polynomial_w special_erfcx
    special_hermite_polynomial_h special_hermite_polynomial_he special_laguerre_polynomial_l
    special_legendre_polynomial_p special_log_ndtr special_modified_bessel_i0 special_modified_bessel_i1
    special_modified_bessel_k0 special_modified_bessel_k1 special_ndtri special_scaled_modified_bessel_k0
    special_scaled_modified_bessel_k1 special_shifted_chebyshev_polynomial_t
    special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v
    special_shifted_chebyshev_polynomial_w special_spherical_bessel_j0 special_zeta triangular_solve
    """
)
"""No half kernel on CUDA nor on the CPU, whose error is then the right answer: cuSOLVER and MAGMA have no
half precision, the others exist for float and double only. (PyTorch's own op database says so for each.)"""

_CPU_ONLY = _words("angle histc igamma igammac")
"""A half kernel on the CPU and none on CUDA, by the same source: refused in CUDA's place."""

_BATCH_NORM = ("input", None, None)
_MIXED: dict[str, tuple[str | None, ...]] = {
    "native_batch_norm": _BATCH_NORM,
    "_native_batch_norm_legit": _BATCH_NORM,
    "_native_batch_norm_legit_no_training": _BATCH_NORM,
    "_native_batch_norm_legit_functional": (*_BATCH_NORM, "running_mean", "running_var"),
    "_batch_norm_with_update": (*_BATCH_NORM, None),
    "_batch_norm_no_update": (*_BATCH_NORM, None),
    "native_batch_norm_backward": ("input", "weight", "weight"),
    "batch_norm_backward": ("input", "weight", "weight"),
    "native_layer_norm": ("input", None, None),
    "native_layer_norm_backward": ("input", "weight", "bias"),
    "native_group_norm": ("input", "weight", "weight"),
    "native_group_norm_backward": ("input", "weight", "weight"),
    "_fused_rms_norm": ("input", None),
    "_fused_rms_norm_backward": ("input", "weight"),
    "_scaled_dot_product_flash_attention_for_cpu": ("query", None),
    "_scaled_dot_product_flash_attention_for_cpu_backward": ("query", "key", "value"),
    "native_dropout": ("input", None),
    "_weight_norm_interface": ("v", None),
    "_weight_norm_interface_backward": ("saved_v", "saved_g"),
    "mkldnn_rnn_layer": ("input", "hx_", "cx_", None),
    "mkldnn_rnn_layer_backward": ("input", "weight1", "weight2", "weight3", "weight4", "hx_", "cx_tmp"),
}
"""Statistics (mean, 1/std, log-sum-exp) stay float32 on CUDA; group norm's have the dtype of its weights."""

_ONLY_IF = {
    "index_put": "accumulate",
    "_index_put_impl": "accumulate",
    "_unsafe_index_put": "accumulate",
    "put": "accumulate",
}
_HIDDEN_WRITES = {"native_batch_norm": frozenset({"running_mean", "running_var"})}
"""Overwritten in training although the schema does not say so."""


def classify(func: OpOverload) -> OpKind:
    """The kind of one op overload, from its schema, its tags and the tables above."""
    schema = func._schema
    namespace, _, full = schema.name.partition("::")
    base = full[:-1] if full.endswith("_") and not full.endswith("__") else full
    written = {a.name: a for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write}
    writes = frozenset(written) | _HIDDEN_WRITES.get(base, frozenset())
    arithmetic = _arithmetic(func, namespace, base)
    return OpKind(
        name=schema.name,
        arithmetic=arithmetic,
        promotes=torch.Tag.pointwise in func.tags or base.startswith("_foreach_") or full.startswith("__"),
        mixed=_MIXED.get(base),
        writes=writes,
        fresh_outputs=frozenset(n for n, a in written.items() if a.is_out),
        returned=_returned(func),
        dtype_argument=next((a.name for a in schema.arguments if "ScalarType" in _real_type(a)), None),
        only_if=_ONLY_IF.get(base),
        positions={a.name: i for i, a in enumerate(schema.arguments)},
    )


def _arithmetic(func: OpOverload, namespace: str, base: str) -> Arithmetic:
    schema = func._schema
    if namespace != "aten":
        return Arithmetic.MOVES
    if base in ("_to_copy", "to", "copy"):
        return Arithmetic.CASTS
    if base in _NEITHER:
        return Arithmetic.FAILS
    if base in _CPU_ONLY:
        return Arithmetic.REFUSED
    if base == "scatter" and "reduce" in schema.overload_name:
        return Arithmetic.COMPUTES
    is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
    takes_tensors = any("Tensor" in _real_type(a) for a in schema.arguments)
    if is_view or not takes_tensors or base in _MOVES or base.removesuffix("_copy") in _VIEWS:
        return Arithmetic.MOVES
    if base not in _MIXED and torch.Tag.nondeterministic_seeded in func.tags:
        return Arithmetic.MOVES  # a sample is drawn in half there as well
    if torch.Tag.view_copy in func.tags or torch.Tag.inplace_view in func.tags:
        return Arithmetic.MOVES
    return Arithmetic.COMPUTES


def _real_type(argument: torch._C.Argument) -> str:
    """An argument's type as the schema spells it; its plain ``type`` says int for a dtype."""
    return str(argument.real_type)


def _returned(func: OpOverload) -> tuple[str | None, ...]:
    owner: dict[str, str] = {}
    for argument in func._schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            for alias in argument.alias_info.before_set:
                owner[alias] = argument.name
    result: list[str | None] = []
    for value in func._schema.returns:
        aliases = value.alias_info.before_set if value.alias_info is not None else ()
        result.append(next((owner[a] for a in aliases if a in owner), None))
    return tuple(result)

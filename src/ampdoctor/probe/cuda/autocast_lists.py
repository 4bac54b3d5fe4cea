"""Which ops CUDA's autocast covers, and how: the lists of ATen/autocast_mode.h, as data.

Those of torch 2.13; PyTorch's AMP documentation describes them under "CUDA Ops that can autocast to ...".
Other versions have a few ops more or fewer. An op on none of the lists passes CUDA's autocast as it is.
"""

from __future__ import annotations

from enum import Enum, auto


class Policy(Enum):
    """What CUDA's autocast does to an op's floating-point operands (never to float64)."""

    LOWER = auto()
    """Casts them to the autocast dtype."""
    FLOAT32 = auto()
    """Casts them to float32."""
    FLOAT32_RESULT = auto()
    """Asks for a float32 result by the op's own ``dtype`` argument, unless the caller set it."""
    FLOAT32_OVERLOAD = auto()
    """The same, by calling the overload that has a ``dtype`` argument."""
    WIDEST = auto()
    """Casts them to the widest dtype among them."""
    REFUSED = auto()
    """Raises."""
    RECURRENT = auto()
    """Casts them to the autocast dtype where cuDNN's recurrent kernel begins."""


def _named(text: str, policy: Policy) -> dict[str, Policy]:
    return dict.fromkeys(text.split(), policy)


CUDA_POLICIES: dict[str, Policy] = {
    **_named(
        """
        _convolution.deprecated _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d
        conv_transpose2d.input conv_transpose3d.input convolution cudnn_convolution
        cudnn_convolution_transpose prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm
        baddbmm bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell
        gru_cell rnn_tanh_cell rnn_relu_cell _scaled_dot_product_flash_attention
        scaled_dot_product_attention
        """,
        Policy.LOWER,
    ),
    **_named(
        """
        acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar
        pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm
        frobenius_norm.dim nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss
        cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss
        huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss
        triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm
        logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d
        _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d
        upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d
        _upsample_bicubic2d_aa
        """,
        Policy.FLOAT32,
    ),
    **_named(
        """
        prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm
        linalg_matrix_norm.str_ord sum sum.dim_IntList
        """,
        Policy.FLOAT32_RESULT,
    ),
    **_named("norm.Scalar norm.ScalarOpt_dim", Policy.FLOAT32_OVERLOAD),
    **_named(
        """
        addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add
        """,
        Policy.WIDEST,
    ),
    **_named("binary_cross_entropy", Policy.REFUSED),
    **_named(
        """
        lstm.input lstm.data gru.input gru.data rnn_tanh.input rnn_tanh.data rnn_relu.input rnn_relu.data
        """,
        Policy.RECURRENT,
    ),
}
"""By overload name without ``aten::``."""

CUDA_ONLY_KERNELS = {"_cudnn_rnn": Policy.RECURRENT, "miopen_rnn": Policy.RECURRENT}
"""Registered in CUDA and ROCm builds only, one level below the recurrent ops above."""

DTYPE_OVERLOADS = {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}
"""For FLOAT32_OVERLOAD: the overload that takes a dtype."""

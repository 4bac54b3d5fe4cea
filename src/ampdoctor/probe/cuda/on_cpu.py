"""CUDA's mixed-precision behaviour on a CPU: its autocast op lists, and tensor-core rounding."""

from ampdoctor.probe.cuda.autocast_calls import autocast_kept_off, requested_autocast
from ampdoctor.probe.cuda.autocast_policy import cuda_autocast_policy
from ampdoctor.probe.cuda.decomposed_rnns import decomposed_rnns
from ampdoctor.probe.cuda.device_tensors import place
from ampdoctor.probe.cuda.fused_dropout import fused_dropout
from ampdoctor.probe.cuda.refusal import EmulatedRefusal
from ampdoctor.probe.cuda.tensor_core_rounding import Emulated, run_like_cuda

__all__ = [
    "Emulated",
    "EmulatedRefusal",
    "autocast_kept_off",
    "cuda_autocast_policy",
    "decomposed_rnns",
    "fused_dropout",
    "place",
    "requested_autocast",
    "run_like_cuda",
]

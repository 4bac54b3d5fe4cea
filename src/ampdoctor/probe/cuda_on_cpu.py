"""CUDA's mixed-precision behaviour on a CPU: its autocast op lists, and tensor-core rounding."""

from ampdoctor.probe.tensor_core_rounding import Emulated, run_like_cuda

__all__ = ["Emulated", "run_like_cuda"]

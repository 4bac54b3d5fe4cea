"""What the emulation raises where CUDA would raise and a CPU would not."""


class EmulatedRefusal(RuntimeError):
    """CUDA refuses this op; the emulation refuses it in CUDA's place."""

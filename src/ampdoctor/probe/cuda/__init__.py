"""CUDA's mixed precision, imitated on a CPU: autocast's op lists, and the rounding of each op."""

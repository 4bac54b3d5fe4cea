"""Searches treatments by running them: loss scale, FP32 islands, BF16. Each that is named was proven."""

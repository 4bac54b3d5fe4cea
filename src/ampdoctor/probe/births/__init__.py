"""The second look: where non-finite values are born, and what FP32 holds at the same places."""

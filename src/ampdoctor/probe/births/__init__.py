"""Where non-finite values are born, and where finite ones part from what FP32 holds at the same places."""

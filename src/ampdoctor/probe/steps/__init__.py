"""Training steps, and what is compared with them: another optimizer, the same steps in FP32."""

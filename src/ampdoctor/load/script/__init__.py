"""From a training script that nobody edited to Workloads: its steps, recorded and replayed."""

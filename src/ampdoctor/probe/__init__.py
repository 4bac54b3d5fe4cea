"""Measures and never judges: a Workload and a Plan become a Trace."""

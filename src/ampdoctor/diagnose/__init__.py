"""Judges: pure functions from a Trace to a Report, standard library only."""

"""Judges a report against what a build demands: severities, limits and a baseline. Standard library only."""

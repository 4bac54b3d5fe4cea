"""Other scales, precisions and plans, tried by short runs of the same work."""

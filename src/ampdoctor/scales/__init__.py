"""What a trace says about loss scales, also about those that were not run. Standard library only."""
